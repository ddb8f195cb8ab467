"""Makes the names of a run's objects in the storage.

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
    """Returns the prefix of all objects that one rank writes."""
    return f"{attempt_prefix(run, step, attempt)}/rank-{rank:05d}"


def shard_object(run: str, step: int, attempt: str, rank: int, index: int) -> str:
    return f"{rank_prefix(run, step, attempt, rank)}-{index:05d}.bin"


def common_prefix(run: str) -> str:
    return f"{checked_run(run)}/shared"


def common_object(run: str, digest: str) -> str:
    """Names a shard that checkpoints of a run share, by the SHA-256 of its bytes."""
    return f"{common_prefix(run)}/{digest}.bin"


def manifest_object(run: str, step: int, attempt: str, rank: int) -> str:
    """Names the object with the tensors, offsets and shards that one rank wrote."""
    return f"{rank_prefix(run, step, attempt, rank)}.json"


def commit_object(run: str, step: int) -> str:
    """Names the object that exists if and only if the checkpoint of a step does."""
    return f"{step_prefix(run, step)}/{COMMIT_OBJECT}"


def epochs_prefix(run: str) -> str:
    return f"{checked_run(run)}/epochs"


def epoch_object(run: str, number: int) -> str:
    """Names the object that each start of a trainer creates, create-only.

    Only the start with the highest number may commit.
    """
    return f"{epochs_prefix(run)}/{number:010d}.json"


def drafts_prefix(run: str) -> str:
    return f"{checked_run(run)}/drafts"


def draft_object(run: str, epoch: int, token: str) -> str:
    """Names the object that start `epoch` moves to the name of a commit.

    A later start deletes it, and the move then fails.
    """
    return f"{drafts_prefix(run)}/{epoch:010d}-{token}.json"


def survivor_object(run: str, epoch: int, step: int) -> str:
    """Names the object whose creator commits a step alone, after another rank was lost."""
    return f"{checked_run(run)}/survivors/{epoch:010d}-{step:010d}.json"


def gang_prefix(run: str) -> str:
    return f"{checked_run(run)}/gang"


def gang_object(run: str, number: int) -> str:
    """Names the object with the members of an elastic gang from here on.

    It is create-only, so that only one proposal of a number counts.
    """
    return f"{gang_prefix(run)}/{number:010d}.json"


def parse_step(component: str) -> int | None:
    """Reads `step-0000000042` as 42; returns None for anything else."""
    match = _STEP.fullmatch(component)
    return int(match.group(1)) if match else None
