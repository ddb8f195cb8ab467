"""Restore: the newest checkpoint whose every byte verifies, on all ranks or on none.

Tensors are filled while their checksums are computed. If a checkpoint is damaged, the next
candidate overwrites them. If no candidate verifies, the job ends: while commits exist it does not
silently start from step 0.

Decisions: infra/decisions/0022, 0138.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit, Shard
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.format.validation import NOTES_KEY
from holdfast.checkpoint.ranks import Ranks, agree_or_raise, outcome, worst
from holdfast.checkpoint.restore.comparison import (
    check_same,
    count_writes,
    find_rewritten,
    fingerprint,
    has_own_format,
    keeps_position,
)
from holdfast.checkpoint.restore.reader import Transfer, open_step, plan
from holdfast.checkpoint.restore.state_loading import StateLoader
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, PerRank, State, capture, targets
from holdfast.checkpoint.state.tensors import Tensors
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime import logs
from holdfast.support.errors import InputError

Skipped = list[tuple[int, str]]
Outcome = dict[str, Any]
"""The result of a call on one rank, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """The checkpoint that was restored, and those that were skipped."""

    step: int
    """Restored step; 0 if there was nothing to restore."""
    skipped: Skipped
    """Newer checkpoints, and the reason why each was skipped."""
    damaged: dict[int, str]
    """Attempts with damaged shards by step; a later save of that step replaces its commit."""
    seconds: float = 0.0
    bytes: int = 0
    age_s: float = 0.0
    """Seconds since the commit."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Notes of the checkpointer about this run."""
    commit_count: int = 0
    """Number of commits of the run up to this one."""
    durable_step: int | None = None
    """Newest committed step, if `step` was restored from the memory of nodes."""
    attempt: str = ""
    origin: str = ""
    """Place in another run, or of another format, from which this run began."""
    shards: tuple[Shard, ...] = ()
    """Shards of this rank's stream, if the same number of ranks saved it."""
    missing: int = 0
    """Number of commits that retention kept with this one and that were deleted since, maybe with
    newer ones.
    """

    @property
    def committed_step(self) -> int:
        """The newest step that is in the store."""
        if self.origin:
            return 0
        return self.step if self.durable_step is None else self.durable_step

    @property
    def shards_in_store(self) -> tuple[Shard, ...]:
        """The shards that the store of this run has, verified by this restore."""
        is_of_this_store = not self.origin and self.durable_step is None
        return self.shards if is_of_this_store else ()


def restore(
    storage: Storage,
    run: str,
    state: State,
    ranks: Ranks,
    tuning: Tuning,
    stop_asked: Callable[[], bool] = lambda: False,
    *,
    fallback: Storage | None = None,
    only_step: int | None = None,
    is_partial: bool = False,
) -> Restored:
    """Fill `state` from the newest checkpoint that verifies on every rank.

    `fallback` is a second source of the same checkpoints, read if the first does not verify.
    `only_step`: no other step is tried. `is_partial`: entries that only one of state and checkpoint
    has are left as they are, and named in the log.

    Raises the same error on every rank: InputError if nothing verifies or the state does not match,
    Preempted if any rank has a notice before all bytes are read.
    """
    start_time = time.monotonic()
    skipped: Skipped = []
    damaged: dict[int, str] = {}
    candidates = _list_candidates(storage, run, ranks, only_step)
    if not candidates:
        return Restored(
            step=0,
            skipped=skipped,
            damaged=damaged,
            seconds=time.monotonic() - start_time,
        )
    # Once, and before a rank can find damage alone: state_dict() of sharded modules may be a
    # collective.
    loaders = list_loaders(state)
    live = capture(state, leave_out=loaders)
    fingerprints = _fingerprint_own_formats(state, live, loaders)
    sources = [storage] if fallback is None else [storage, fallback]
    make_attempt = partial(
        _Attempt,
        run=run,
        state=state,
        ranks=ranks,
        tuning=tuning,
        live=live,
        stop_asked=stop_asked,
        is_partial=is_partial,
    )
    for step in candidates:
        failpoint("restore.chosen")
        # Every rank tries the same step: a gang that resumes at two steps trains garbage without an
        # error.
        attempts = [make_attempt(storage=source, step=step) for source in sources]
        attempt, reason = _verify_any(ranks, attempts)
        if reason:
            skipped.append((step, reason))
            damaged[step] = attempt.attempt
            continue
        _load(ranks, attempt, fingerprints)
        commit = attempt.opened.commit
        # Only for the newest: the count of an older commit would report deletions of retention.
        deleted = max(0, commit.commit_count - len(candidates))
        notes = attempt.opened.manifests[0].values.get(NOTES_KEY, {})
        is_same_size = commit.world_size == ranks.world_size
        return Restored(
            step=step,
            attempt=attempt.attempt,
            skipped=skipped,
            damaged=damaged,
            seconds=time.monotonic() - start_time,
            bytes=commit.total_bytes,
            age_s=max(0.0, time.time() - commit.created),
            notes=notes,
            shards=attempt.opened.manifests[ranks.rank].shards if is_same_size else (),
            commit_count=len(candidates) - len(skipped),
            missing=0 if skipped else deleted,
        )
    # Never step 0 here: retention would then delete the checkpoints that a person could still
    # repair.
    raise verification_error(run, skipped)


def _list_candidates(
    storage: Storage,
    run: str,
    ranks: Ranks,
    only_step: int | None,
) -> list[int]:
    """Return the committed steps, newest first, or `only_step`: the same list on every rank."""
    # All ranks use the coordinator's listing: on mounts, listings may differ from rank to rank.
    listing: Outcome = {}
    if ranks.coordinator and only_step is not None:
        listing = {"value": [only_step]}
    elif ranks.coordinator:
        listing = outcome(lambda: committed_steps(storage, run))
    return agree_or_raise(ranks, listing)["value"]


def _fingerprint_own_formats(
    state: State,
    live: Captured,
    loaders: list[str],
) -> dict[str, str]:
    """Return fingerprints that show later whether an entry ignored what was loaded.

    Only entries with a state format of their own can; `loaders` are not captured yet.
    """
    fingerprints: dict[str, str] = {}
    for name, value in targets(state):
        if has_own_format(value) and name not in loaders:
            fingerprints[name] = fingerprint(live, name)
    return fingerprints


def list_loaders(state: State) -> list[str]:
    """Return the entries whose state_dict() must not be called before they are loaded."""
    return [name for name, value in targets(state) if keeps_position(value)]


def verification_error(run: str, skipped: Skipped) -> InputError:
    reasons = [f"step {step}: {reason}" for step, reason in skipped]
    return InputError(
        f"run {run} has checkpoints, and none of them verifies",
        got="; ".join(reasons)[:600],
        allowed="at least one that verifies, or a run without commits",
        fix=(
            "bring back deleted objects (soft delete, versions), or start over under another run"
            " name"
        ),
    )


def _verify_any(ranks: Ranks, attempts: "list[_Attempt]") -> "tuple[_Attempt, str]":
    """Return the first copy that all ranks have verified, and an empty reason.

    If none verifies, return the last copy and the reason against the first. Raises InputError on
    all ranks.
    """
    reasons: list[str] = []
    for attempt in attempts:
        own_outcome = outcome(attempt.verify)
        failpoint("restore.verified")
        decision = agree_or_raise(ranks, own_outcome, _decide_outcome)
        if "damaged" not in decision:
            return attempt, ""
        reasons.append(decision["damaged"])
    return attempts[-1], reasons[0]


def _decide_outcome(outcomes: list[Outcome]) -> Outcome:
    decision = worst(outcomes)
    if "value" not in decision:
        return decision
    # A listing may lag behind: one rank would read an attempt that another has replaced.
    for rank_outcome in outcomes:
        if rank_outcome["value"] != decision["value"]:
            return {"damaged": "the ranks read different attempts of it"}
    return decision


def _load(
    ranks: Ranks,
    attempt: "_Attempt",
    fingerprints: dict[str, str],
) -> None:
    """Load a verified checkpoint on all ranks, and log what could not be checked."""
    # load_state_dict() is code of the user's, and may raise on one rank only.
    agree_or_raise(ranks, outcome(attempt.apply))
    check = partial(
        attempt.check,
        capture(attempt.state),
        fingerprints,
    )
    decision = agree_or_raise(ranks, outcome(check))
    if ranks.coordinator:
        for line in decision["value"]:
            logs.info("restore", line)
    failpoint("restore.applied")


def check_ranks(
    state: State,
    world_size: int,
    commit: Commit,
) -> None:
    """Raise InputError if a PerRank entry would be restored on another number of ranks."""
    saved_size = commit.world_size
    if saved_size == world_size:
        return
    for name, entry in state.items():
        if isinstance(entry, PerRank):
            raise InputError(
                f"entry {name} is marked PerRank and fits only the number of ranks that saved it",
                got=f"{world_size} ranks; step {commit.step} was saved by {saved_size}",
                allowed=(
                    f"{saved_size} ranks, or entries that any number can share: whole ones, and"
                    " DTensors"
                ),
                fix=f"start {saved_size} ranks, or shard the entry by fully_shard (FSDP2)",
            )


@dataclass(kw_only=True)
class _Attempt:
    """The restore of one step on one rank: fill and verify the tensors, then load all entries.

    The ranks agree between these two, so that entries are loaded on all of them or on none.
    """

    storage: Storage
    run: str
    step: int
    state: State
    ranks: Ranks
    tuning: Tuning
    live: Captured
    stop_asked: Callable[[], bool]
    is_partial: bool = False
    attempt: str = ""

    def verify(self) -> str:
        """Fill the tensors and verify them. Returns the id of the attempt that was read."""
        opened = open_step(self.storage, self.run, self.step)
        self.opened = opened
        self.attempt = opened.commit.attempt
        check_ranks(self.state, self.ranks.world_size, opened.commit)
        self._loader = StateLoader(
            self.state,
            opened,
            self.ranks.rank,
            live=self.live,
            is_partial=self.is_partial,
        )
        self._read(self._loader.tensors, self.stop_asked)
        with torch.no_grad():
            self._loader.merge_aliases()
        self._loader.check_random_state()
        return self.attempt

    def apply(self) -> None:
        """Load the verified tensors and values into the entries of the state."""
        self._write_counts = count_writes(self._loader.exact_tensors)
        with torch.no_grad():
            self._loader.load()

    def check(self, after: Captured, fingerprints: dict[str, str]) -> list[str]:
        """Check that the state holds the bits that were verified. Returns what it cannot check.

        `after` is the state as captured after the load, `fingerprints` come from before it. Raises
        InputError if the bits differ.
        """
        loaded = self._loader.exact_tensors
        live = self._loader.map_keys(after.tensors)
        # Read a second time into other memory: the loaded tensors may have been written since, so
        # they prove nothing.
        rewritten = find_rewritten(loaded, live, self._write_counts)
        second_reading: Tensors = {}
        for key in rewritten:
            second_reading[key] = torch.empty_like(loaded[key])
        self._read(second_reading, lambda: False)
        for key, tensor in second_reading.items():
            check_same(key, live[key], tensor)
        return self._loader.check_own_formats(fingerprints, after)

    def _read(self, tensors: Tensors, stop_asked: Callable[[], bool]) -> None:
        copies = plan(self.opened, tensors, rank=self.ranks.rank)
        transfer = Transfer(
            self.storage,
            self.opened,
            parallel=self.tuning.parallel,
            stop_asked=stop_asked,
        )
        with torch.no_grad():
            transfer.run(copies)
