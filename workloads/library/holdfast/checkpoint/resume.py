"""What a start takes up: whatever is there, something in any case, nothing, or one step."""

from typing import Literal

from holdfast.contract.errors import InputError

Resume = Literal["auto", "must", "never"] | int


def checked_resume(resume: Resume) -> Resume:
    if resume in ("auto", "must", "never") or (type(resume) is int and resume > 0):
        return resume
    raise InputError(
        "resume is not understood",
        got=repr(resume)[:80],
        allowed='"auto", "must", "never", or the number of a step',
        fix='leave it away, which is "auto"',
    )


def creates(resume: Resume) -> bool:
    """Whether a store that is not there may be made."""
    return resume in ("auto", "never")


def candidates(resume: Resume, committed: list[int], *, where: str) -> list[int]:
    """Steps to try, in this order, of the `committed` ones, newest first. Raises InputError."""
    if resume == "must" and not committed:
        raise _refused("there is no checkpoint, and resume is 'must'", where, "check the URL and the run's name")
    if resume == "never" and committed:
        # Not a fresh start beside them: objects are never overwritten, so its saves of the same steps would be lost.
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
    """Those to try: all, or the one that is wanted."""
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
