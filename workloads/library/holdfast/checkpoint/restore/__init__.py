"""Restore: the newest checkpoint whose every byte verifies, on all ranks or on none.

Tensors are filled while their checksums are computed; what damage spoiled, the next candidate
overwrites, and if no candidate verifies the job ends: it never begins again from step 0 silently
while commits exist.

Decision: infra/decisions/0022.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.format.soundness import NOTES_KEY
from holdfast.checkpoint.ranks import Ranks, agreed, outcome, worst
from holdfast.checkpoint.restore.reading import Transfer, open_step, plan
from holdfast.checkpoint.restore.target import (
    Target,
    check_same,
    compare,
    sketch,
    unproven,
    versions,
)
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, PerRank, capture, targets
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime import logs
from holdfast.support.errors import InputError

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
    age_s: float = 0.0
    """Since it was committed."""
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the checkpointer had learnt of this run."""
    commit_count: int = 0
    """Commits of the run up to this one."""
    durable_step: int | None = None
    """Newest step that is committed, where `step` was restored from the memory of nodes."""
    attempt: str = ""
    missing: int = 0
    """Commits that retention had left in addition to this one: they were deleted, and maybe newer
    ones with them.
    """

    @property
    def committed_step(self) -> int:
        return self.step if self.durable_step is None else self.durable_step


def restore(
    storage: Storage,
    run: str,
    state: dict[str, Any],
    ranks: Ranks,
    tuning: Tuning,
    stop_asked: Callable[[], bool] = lambda: False,
    *,
    again: Storage | None = None,
) -> Restored:
    """Fills `state`. `again`: a second source of the same checkpoints, for what does not verify in
    the first. Raises on every rank InputError where nothing verifies or the state is another one,
    and Preempted after a notice on any rank before all bytes are there.
    """
    began = time.monotonic()
    skipped: Skipped = []
    damaged: dict[int, str] = {}
    # One rank's listing counts: on mounts, listings may differ from rank to rank.
    listed = outcome(lambda: committed_steps(storage, run)) if ranks.coordinator else {}
    candidates: list[int] = agreed(ranks, listed)["value"]
    if not candidates:
        return Restored(
            step=0,
            skipped=skipped,
            damaged=damaged,
            seconds=time.monotonic() - began,
        )
    # Once, and before a rank can find damage alone: state_dict() of sharded modules may be a
    # collective.
    live = capture(state)
    before = {name: sketch(live, name) for name, value in targets(state) if unproven(value)}
    sources = [storage] if again is None else [storage, again]
    make = partial(
        _Attempt,
        run=run,
        state=state,
        ranks=ranks,
        tuning=tuning,
        live=live,
        stop_asked=stop_asked,
    )
    for step in candidates:
        failpoint("restore.chosen")
        # Every rank tries the same step: a gang that resumes at two steps trains garbage without an
        # error.
        attempt, reason = _first_sound(ranks, [make(storage=copy, step=step) for copy in sources])
        if not reason:
            # load_state_dict() is code of the user's, and may raise on one rank only.
            agreed(ranks, outcome(attempt.apply))
            found = agreed(ranks, outcome(partial(attempt.compare, capture(state), before)))
            for line in found["value"] if ranks.coordinator else []:
                logs.info("restore", line)
            failpoint("restore.applied")
            commit = attempt.opened.commit
            return Restored(
                step=step,
                attempt=attempt.attempt,
                skipped=skipped,
                damaged=damaged,
                seconds=time.monotonic() - began,
                bytes=commit.total_bytes,
                age_s=max(0.0, time.time() - commit.created),
                notes=attempt.opened.manifests[0].values.get(NOTES_KEY, {}),
                commit_count=len(candidates) - len(skipped),
                # A count that was read from an older commit would report a deletion that retention
                # made.
                missing=0 if skipped else max(0, commit.commit_count - len(candidates)),
            )
        skipped.append((step, reason))
        damaged[step] = attempt.attempt
    # Never step 0 here: retention would then delete the checkpoints that a person could still
    # repair.
    raise none_verifies(run, skipped)


def none_verifies(run: str, skipped: Skipped) -> InputError:
    return InputError(
        f"run {run} has checkpoints, and none of them verifies",
        got="; ".join(f"step {step}: {reason}" for step, reason in skipped)[:600],
        allowed="at least one that verifies, or a run without commits",
        fix=(
            "bring back deleted objects (soft delete, versions), or start over under another run"
            " name"
        ),
    )


def _first_sound(ranks: Ranks, attempts: "list[_Attempt]") -> "tuple[_Attempt, str]":
    """The first copy that all ranks have verified; else the last one, and why the first may not be
    loaded. Raises InputError on all ranks.
    """
    reasons: list[str] = []
    for attempt in attempts:
        mine = outcome(attempt.verify)
        failpoint("restore.verified")
        found = agreed(ranks, mine, _worst_or_mixed)
        if "damaged" not in found:
            return attempt, ""
        reasons.append(found["damaged"])
    return attempts[-1], reasons[0]


def _worst_or_mixed(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    found = worst(outcomes)
    # A listing may lag behind: one rank would read an attempt that another has replaced.
    if "value" in found and len({one["value"] for one in outcomes}) > 1:
        return {"damaged": "the ranks read different attempts of it"}
    return found


def check_ranks(state: dict[str, Any], world_size: int, commit: Commit) -> None:
    """Raises InputError where an entry of each rank's own would go to other ranks than those that
    saved it.
    """
    own = [name for name, entry in state.items() if isinstance(entry, PerRank)]
    if own and commit.world_size != world_size:
        raise InputError(
            f"entry {own[0]} is marked PerRank and fits only the number of ranks that saved it",
            got=f"{world_size} ranks; step {commit.step} was saved by {commit.world_size}",
            allowed=(
                f"{commit.world_size} ranks, or entries that any number can share: whole ones, and"
                " DTensors"
            ),
            fix=f"start {commit.world_size} ranks, or shard the entry by fully_shard (FSDP2)",
        )


@dataclass(kw_only=True)
class _Attempt:
    """Restoring one step on one rank: fill the tensors and verify, then, if all ranks could, load
    the rest.
    """

    storage: Storage
    run: str
    step: int
    state: dict[str, Any]
    ranks: Ranks
    tuning: Tuning
    live: Captured
    stop_asked: Callable[[], bool]
    attempt: str = ""

    def verify(self) -> str:
        """Which attempt it was."""
        opened = self.opened = open_step(self.storage, self.run, self.step)
        self.attempt = opened.commit.attempt
        check_ranks(self.state, self.ranks.world_size, opened.commit)
        self._target = Target(self.state, opened, self.ranks.rank, live=self.live)
        self._read(self._target.tensors, self.stop_asked)
        self._target.check_random_state()
        return self.attempt

    def apply(self) -> None:
        self._before = versions(self._target.loaded)
        with torch.no_grad():
            self._target.load()

    def compare(self, after: Captured, before: dict[str, str]) -> list[str]:
        """What could not be checked. Raises InputError unless the state holds the bits that were
        verified.
        """
        loaded = self._target.loaded
        live = self._target.saved_keys(after.tensors)
        # Read a second time into other memory: what was loaded may have been written since, and is
        # no witness.
        again = {key: torch.empty_like(loaded[key]) for key in compare(loaded, live, self._before)}
        self._read(again, lambda: False)
        for key, truth in again.items():
            check_same(key, live[key], truth)
        return self._target.check_others(before, after)

    def _read(self, tensors: dict[str, torch.Tensor], stop_asked: Callable[[], bool]) -> None:
        copies = plan(self.opened, tensors, rank=self.ranks.rank)
        with torch.no_grad():
            Transfer(
                self.storage,
                self.opened,
                parallel=self.tuning.parallel,
                stop_asked=stop_asked,
            ).run(copies)
