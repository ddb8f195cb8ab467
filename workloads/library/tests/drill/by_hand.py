"""A target whose behavior is set by the test."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.drill.plan import Blast, Drill, DrillWork, Fault, Place, parse_bound, parse_objective
from holdfast.drill.target import Undo

DRILL = Drill(
    name="by-hand",
    question="Does the runner keep its guarantees?",
    place=Place.LOCAL,
    work=DrillWork.TRAINER,
    steady=parse_bound("pulse >= 1"),
    steady_s=0.2,
    blast=Blast(of="hand", most=2),
    fault=Fault.POWER_LOSS,
    stop_when=parse_bound("harm >= 1"),
    recovery_s=0.3,
    objectives=(
        parse_objective("recovered in time: recovered_s <= 0.2 s"),
        parse_objective("nothing lost: lost = 0"),
    ),
    rollback="let go",
)


@dataclass
class ByHand:
    numbers: dict[str, float | None] = field(
        default_factory=lambda: {
            "pulse": 1.0,
            "recovered_s": 0.1,
            "lost": 0.0,
        }
    )
    on_inject: Callable[[], None] = lambda: None
    on_undo: Callable[[], None] = lambda: None
    done: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        self.done.append("prepare")

    def candidates(self) -> list[str]:
        return ["one", "two", "three"]

    def measure(self, metric: str) -> float | None:
        return self.numbers.get(metric)

    def inject(self, victims: Sequence[str]) -> str:
        self.done.append(f"inject {','.join(victims)}")
        self.on_inject()
        return "hit"

    def has_recovered(self) -> bool:
        return self.measure("recovered_s") is not None

    def rollback(self) -> Iterable[Undo]:
        yield "first", self.on_undo
        yield "second", lambda: self.done.append("undone")


def no_log(_moment: float, _step: str, _text: str) -> None:
    """Logs nothing."""
