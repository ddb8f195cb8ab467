"""What a proof has done so far, in a file that outlives it: whoever is killed leaves a record of what to remove."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

SCHEMA = "holdfast.proof/1"


class State(StrEnum):
    RUNNING = "running"
    CLEAN = "clean"
    """Everything that it made is gone again."""
    LEFT = "left"
    """The clean-up itself failed or was cut short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    step: str
    holds: str
    code: int
    """Exit code of the step; negative: ended by a signal, or by its time limit."""
    seconds: float


@dataclass(kw_only=True, slots=True)
class Journal:
    run: str
    """The value of the run's label."""
    environment: str
    usd: float
    """The upper bound that was agreed to."""
    state: State = State.RUNNING
    steps: list[Done] = field(default_factory=list[Done])

    @property
    def held(self) -> bool:
        return bool(self.steps) and all(step.code == 0 for step in self.steps)

    def write(self, folder: Path) -> None:
        """Whole at any moment."""
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / ".proof.json"
        fresh.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n")
        fresh.replace(folder / "proof.json")


def unfinished(out: Path, environment: str) -> list[tuple[Path, Journal]]:
    """Proofs of an environment that may have left something, oldest first."""
    found = [(path.parent, _read(path)) for path in sorted(out.glob("*/proof.json"))]
    return [(f, j) for f, j in found if j.environment == environment and j.state is not State.CLEAN]


def _read(path: Path) -> Journal:
    body = json.loads(path.read_text())
    return Journal(
        run=body["run"],
        environment=body["environment"],
        usd=body["usd"],
        state=State(body["state"]),
        steps=[Done(**step) for step in body["steps"]],
    )
