"""What a run has in the storage: every attempt of every step, and which of its commits a start or a reader may use."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format.decoding import MAX_COMMIT_BYTES, decode_commit
from holdfast.checkpoint.format.records import Commit
from holdfast.checkpoint.settings import Resume
from holdfast.checkpoint.stores.storage import Stat, Storage, read_object
from holdfast.contract import object_names
from holdfast.contract.errors import InputError


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
        # Foreign objects below the run are left alone, and are no error.
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


def read_commit(storage: Storage, run: str, step: int) -> Commit | None:
    """None where there is none that can be read."""
    try:
        data = read_object(storage, object_names.commit_object(run, step), limit=MAX_COMMIT_BYTES)
        return decode_commit(data, run=run, step=step)
    except (Damaged, EOFError, NotFound, InputError):
        return None


def runs(storage: Storage) -> list[str]:
    # By the objects themselves: stores have no folders, and a run that never committed is listed too.
    return sorted({found.name.split("/")[0] for found in storage.list("") if "/" in found.name})


def candidates(resume: Resume, committed: list[int], *, where: str) -> list[int]:
    """Steps to try, in this order, of the `committed` ones, newest first. Raises InputError."""
    if resume == "must" and not committed:
        raise _refused("there is no checkpoint, and resume is 'must'", where, "check the URL and the run's name")
    if resume == "never" and committed:
        # Not a fresh start next to them: objects are never overwritten, so its saves of the same steps would be lost.
        got = f"{where}, step {committed[0]}"
        raise _refused("there is a checkpoint, and resume is 'never'", got, "choose another run name")
    if not isinstance(resume, int):
        return committed
    if resume not in committed:
        got = f"{where}, with steps {committed[:10]}"
        raise _refused(f"step {resume} is not there", got, "choose one of these steps")
    if resume != committed[0]:
        # They would be taken for newer work by the next start, and push out what this one saves.
        got = f"{where}, with newer steps {committed[: committed.index(resume)][:10]}"
        raise _refused(f"step {resume} is not the newest", got, "delete the newer steps, then start again")
    return [resume]


def steps_of(step: int | None, committed: list[int], run: str) -> list[int]:
    """Those to try: all, or the one that is wanted. Raises InputError where that one is not there."""
    if step is not None and step not in committed:
        raise InputError(
            f"run {run} has no checkpoint of this step",
            got=str(step),
            allowed=", ".join(map(str, committed[:10])) or "none: the run has no commit",
            fix="choose one of these steps",
        )
    return committed if step is None else [step]


def _refused(what: str, got: str, fix: str) -> InputError:
    allowed = '"auto" takes the newest there is or begins at step 0; "must", "never" and a step insist'
    return InputError(what, got=got, allowed=allowed, fix=fix)
