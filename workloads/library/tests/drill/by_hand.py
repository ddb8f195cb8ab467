"""A target whose behaviour a test decides."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.drill.catalogue import at_least, at_most, equal
from holdfast.drill.plan import Blast, Budget, Drill, Fault, Objective, Place, SteadyState, Work
from holdfast.drill.target import Loss

DRILL = Drill(
    name="by-hand",
    question="Does the runner keep its guarantees?",
    place=Place.LOCAL,
    work=Work.TRAINER,
    steady_state=SteadyState(bound=at_least("pulse", 1), within_s=0.2),
    blast=Blast(of="hand", most=2),
    fault=Fault.POWER_LOSS,
    stop_when=at_least("harm", 1),
    recovery_s=0.3,
    objectives=(
        Objective(promise="recovered in time", bound=at_most("recovered_s", 0.2, "s")),
        Objective(promise="nothing lost", bound=equal("lost", 0)),
        Objective(promise="nobody paged", bound=equal("fires:HoldfastX", 0), essential=False),
    ),
    rollback="let go",
    budget=Budget(minutes=1),
)


@dataclass
class ByHand:
    numbers: dict[str, float | None] = field(default_factory=lambda: {"pulse": 1.0, "recovered_s": 0.1, "lost": 0.0})
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

    def recovered(self) -> bool:
        return self.measure("recovered_s") is not None

    def losses(self) -> list[Loss]:
        return [Loss(1.0, "pool")]

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]:
        yield "first", self.on_undo
        yield "second", lambda: self.done.append("undone")


def no_log(_t: float, _step: str, _what: str) -> None:
    """Logs nothing."""


def never_fires(_alert: str, _losses: Sequence[Loss]) -> float:
    """No alert fires."""
    return 0.0
