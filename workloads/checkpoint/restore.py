"""Restore: the newest checkpoint whose every byte verifies, on all ranks or on none.

Called by Checkpointer at start, and by `load_tensors` for readers without a process group. Tensors are
filled while their checksums are computed; what damage spoiled, the next candidate overwrites, and if no
candidate verifies the job ends: it never begins again from step 0 in silence while commits exist.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from infra.contract.errors import InputError
from workloads.checkpoint.catalogue import committed_steps, runs
from workloads.checkpoint.format import Damaged
from workloads.checkpoint.points import reach
from workloads.checkpoint.ranks import Ranks
from workloads.checkpoint.reading import Opened, Transfer, Wanted, open_step, plan, saved_dtype
from workloads.checkpoint.retrying import Retrying
from workloads.checkpoint.settings import Tuning
from workloads.checkpoint.storage import Storage, StorageError, existing_storage
from workloads.checkpoint.target import Target
from workloads.checkpoint.tree import NOTES_KEY

Skipped = list[tuple[int, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    step: int
    """0: nothing to restore."""
    skipped: Skipped
    """Newer checkpoints and why each was passed over."""
    damaged: dict[int, str]
    """Step -> attempt whose shards are damaged; a later save of that step replaces its commit."""
    seconds: float = 0.0
    bytes: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the checkpointer had learnt of this run."""


def restore(storage: Storage, run: str, state: dict[str, Any], ranks: Ranks, tuning: Tuning) -> Restored:
    began = time.monotonic()
    skipped: Skipped = []
    damaged: dict[int, str] = {}
    for step in _candidates(storage, run, ranks):
        reach("restore.chosen")
        attempt = _Attempt(storage, run, step, state, ranks.rank, tuning)
        reason = _verdict(ranks, attempt)
        if not reason:
            size = attempt.apply()
            reach("restore.applied")
            seconds = time.monotonic() - began
            return Restored(
                step=step, skipped=skipped, damaged=damaged, seconds=seconds, bytes=size, notes=attempt.notes
            )
        skipped.append((step, reason))
        damaged[step] = attempt.attempt
    if skipped:
        raise _none_verifies(run, skipped)
    return Restored(step=0, skipped=skipped, damaged=damaged, seconds=time.monotonic() - began)


def _none_verifies(run: str, skipped: Skipped) -> InputError:
    return InputError(
        f"run {run} has checkpoints, and none of them verifies",
        got="; ".join(f"step {step}: {reason}" for step, reason in skipped)[:600],
        allowed="at least one that verifies, or a run without commits",
        fix="bring back deleted objects (soft delete, versions), or begin anew under another run name",
    )


def _candidates(storage: Storage, run: str, ranks: Ranks) -> list[int]:
    """As the coordinator lists them: a listing may differ from rank to rank."""
    mine = _guarded(lambda: committed_steps(storage, run)) if ranks.coordinator else {}
    return _agreed(ranks, mine)["value"]


def _verdict(ranks: Ranks, attempt: "_Attempt") -> str:
    """Why no rank may load this checkpoint; empty if all have verified it. Raises InputError on all alike."""
    mine = _guarded(attempt.verify)
    reach("restore.verified")
    return _agreed(ranks, mine).get("damaged", "")


def _guarded(call: Any) -> dict[str, Any]:
    """The outcome as JSON, so that one rank's error can be raised on every rank."""
    try:
        return {"value": call()}
    except (Damaged, EOFError) as error:
        return {"damaged": str(error)}
    except InputError as error:
        return {"input": [error.what, error.got, error.allowed, error.fix]}
    except StorageError as error:
        return {"input": _unreachable(error)}


def _unreachable(error: StorageError) -> list[str]:
    # Not damage: falling back would throw away good checkpoints because the store is away.
    return [
        "checkpoint storage cannot be read",
        f"{type(error).__name__}: {error}",
        "a reachable store with permission to list and read",
        "check the URL, the credentials and the network, then start again",
    ]


def _agreed(ranks: Ranks, mine: dict[str, Any]) -> dict[str, Any]:
    decision: dict[str, Any] = ranks.agree(mine, _worst)
    if "input" in decision:
        what, got, allowed, fix = decision["input"]
        raise InputError(what, got=got, allowed=allowed, fix=fix)
    return decision


def _worst(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    for kind in ("input", "damaged"):
        for rank, outcome in enumerate(outcomes):
            if kind == "damaged" and kind in outcome:
                return {"damaged": f"rank {rank}: {outcome['damaged']}"}
            if kind in outcome:
                return outcome
    return outcomes[0]


class _Attempt:
    """Restoring one step on one rank: fill the tensors and verify, then, if all ranks could, load the rest."""

    def __init__(self, storage: Storage, run: str, step: int, state: dict[str, Any], rank: int, tuning: Tuning) -> None:
        self._storage, self._run, self._step, self._rank, self._tuning = storage, run, step, rank, tuning
        self._state = state
        self.attempt = ""
        self.notes: dict[str, Any] = {}

    def verify(self) -> None:
        opened = open_step(self._storage, self._run, self._step)
        self.attempt = opened.commit.attempt
        self._target = Target(self._state, opened, self._rank)
        copies = plan(opened, self._target.wanted(), rank=self._rank)
        with torch.no_grad():
            Transfer(self._storage, opened, parallel=self._tuning.parallel).run(copies)
        self._bytes = opened.commit.total_bytes
        self.notes = opened.manifests[0].values.get(NOTES_KEY, {})

    def apply(self) -> int:
        with torch.no_grad():
            self._target.load()
        return self._bytes


def load_tensors(
    url: str, run: str | None = None, keys: Collection[str] | None = None
) -> tuple[int, dict[str, torch.Tensor]]:
    """The newest checkpoint that verifies, as whole tensors by key, without a process group.

    `run` None means the only run there is. `keys` picks tensors; one that ends in '/' picks all below it.
    """
    storage = Retrying(existing_storage(url), budget_s=60.0)
    run = run or _only_run(storage)
    reasons: list[str] = []
    for step in committed_steps(storage, run):
        try:
            opened = open_step(storage, run, step)
            return step, read_whole(storage, opened, keys)
        except Damaged as error:
            reasons.append(f"step {step}: {error}")
    raise InputError(
        f"run {run} has no checkpoint that verifies",
        got="; ".join(reasons)[:400] or "no commit",
        allowed="a run with a committed checkpoint",
        fix=f"look with: python -m workloads checkpoints {url}",
    )


def read_whole(storage: Storage, opened: Opened, keys: Collection[str] | None) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, sources in opened.sources.items():
        if keys is None or key in keys or any(k.endswith("/") and key.startswith(k) for k in keys):
            part = sources[0].part
            found[key] = torch.empty(part.shape, dtype=saved_dtype(part))
    wanted = [Wanted(key=key, offset=(0,) * into.ndim, into=into) for key, into in found.items()]
    Transfer(storage, opened, parallel=4).run(plan(opened, wanted, rank=0))
    return found


def _only_run(storage: Storage) -> str:
    found = [run for run in runs(storage) if committed_steps(storage, run)]
    if len(found) == 1:
        return found[0]
    raise InputError(
        "which run's checkpoint is meant is not clear",
        got=", ".join(found) or "no run with a committed checkpoint",
        allowed="one run, or its name",
        fix="name the run",
    )
