"""What a run has in the storage: every attempt of every step, committed or not. Names and sizes only."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.checkpoint.storage import Stat, Storage
from holdfast.contract import object_names


@dataclass(kw_only=True, slots=True)
class StepObjects:
    step: int
    commit: Stat | None = None
    attempts: dict[str, list[Stat]] = field(default_factory=dict[str, list[Stat]])


def survey(storage: Storage, run: str) -> dict[int, StepObjects]:
    return group(storage.list(object_names.checked_run(run)))


def group(stats: Iterable[Stat]) -> dict[int, StepObjects]:
    steps: dict[int, StepObjects] = {}
    for found in stats:
        _, step_part, *rest = [*found.name.split("/"), "", ""]
        step = object_names.parse_step(step_part)
        # Somebody else's objects below the run are left alone, and are no error.
        if step is None:
            continue
        entry = steps.setdefault(step, StepObjects(step=step))
        if rest[0] == object_names.COMMIT_OBJECT:
            entry.commit = found
        elif rest[1]:
            entry.attempts.setdefault(rest[0], []).append(found)
    return steps


def committed_steps(storage: Storage, run: str) -> list[int]:
    """Newest first."""
    # A listing only proposes: whether a commit is one shows when it is read.
    return sorted((s.step for s in survey(storage, run).values() if s.commit), reverse=True)


def runs(storage: Storage) -> list[str]:
    # By the objects themselves: stores have no folders, and a run that never committed is listed too.
    return sorted({found.name.split("/")[0] for found in storage.list("") if "/" in found.name})
