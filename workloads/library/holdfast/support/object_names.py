"""Names of a run and of its objects in the storage.

A checkpoint is <run>/step-<n>/<attempt>/<shard>, and one COMMIT.json for each step, written last. A
name here is part of the format: checkpoints of older releases are found by it.
"""

import re

from holdfast.support.errors import InputError

COMMIT_OBJECT = "COMMIT.json"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_STEP = re.compile(r"step-([0-9]{10})")
_ATTEMPT = re.compile(r"[0-9a-f]{12}")


def checked_run(run: str) -> str:
    if not _RUN.fullmatch(run) or ".." in run:
        raise InputError(
            "run name is not usable as an object name",
            got=run[:80],
            allowed="1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or digit, without '..'",
            fix="rename the run",
        )
    return run


def step_prefix(run: str, step: int) -> str:
    return f"{checked_run(run)}/step-{step:010d}"


def attempt_prefix(run: str, step: int, attempt: str) -> str:
    assert _ATTEMPT.fullmatch(attempt), attempt
    return f"{step_prefix(run, step)}/{attempt}"


def rank_prefix(run: str, step: int, attempt: str, rank: int) -> str:
    """Of the names of all objects that one rank writes."""
    return f"{attempt_prefix(run, step, attempt)}/rank-{rank:05d}"


def shard_object(run: str, step: int, attempt: str, rank: int, index: int) -> str:
    return f"{rank_prefix(run, step, attempt, rank)}-{index:05d}.bin"


def manifest_object(run: str, step: int, attempt: str, rank: int) -> str:
    """What one rank wrote: tensors, offsets, shards with length and crc32c."""
    return f"{rank_prefix(run, step, attempt, rank)}.json"


def commit_object(run: str, step: int) -> str:
    """The checkpoint of a step exists if and only if this object does."""
    return f"{step_prefix(run, step)}/{COMMIT_OBJECT}"


def epochs_prefix(run: str) -> str:
    return f"{checked_run(run)}/epochs"


def epoch_object(run: str, number: int) -> str:
    """Made by each start of a trainer, create-only: only the one with the highest number may
    commit.
    """
    return f"{epochs_prefix(run)}/{number:010d}.json"


def gang_prefix(run: str) -> str:
    return f"{checked_run(run)}/gang"


def gang_object(run: str, number: int) -> str:
    """Who belongs to an elastic gang from here on; create-only, so that only one proposal of a
    number counts.
    """
    return f"{gang_prefix(run)}/{number:010d}.json"


def parse_step(component: str) -> int | None:
    """`step-0000000042` -> 42, anything else -> None."""
    match = _STEP.fullmatch(component)
    return int(match.group(1)) if match else None
