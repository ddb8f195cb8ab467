"""Agreements of the ranks of a job, through torch.distributed's store, never through a collective.

They happen at start, at each save and at the stop, not in other steps. Every rank calls `agree`
equally often and in the same order. One rank's error is every rank's: each reports its outcome, the
worst counts, and all raise the same error, so no rank waits for one that has given up.

Decision: infra/decisions/0021.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from holdfast.checkpoint.errors import Damaged, Preempted, RankLost, StorageError, Transient
from holdfast.runtime.ballot import Store
from holdfast.runtime.stop import OneProcessStore
from holdfast.support.errors import InputError, Later
from holdfast.support.lost_peer import says_lost_peer

Json = Any
Outcome = dict[str, Any]
"""A value, or the way in which a rank failed, as JSON."""

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.05
_READ_S = 10.0
"""Longest wait until all ranks have read the last decision, after which they end."""

_generation = 0


class Ranks:
    """The ranks of a job, as one of them sees the others: through a store."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        timeout_s: float = 600.0,
    ) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self._timeout_s = timeout_s
        self._turn = 0

    @classmethod
    def of_job(cls, *, timeout_s: float) -> Self:
        """Returns the ranks of the default process group; without one, this process alone."""
        global _generation
        # A second Checkpointer of the process must not read the answers of the first.
        _generation += 1  # every rank makes its checkpointers in the same order
        if not (dist.is_available() and dist.is_initialized()):
            return cls(
                OneProcessStore(),
                0,
                1,
                timeout_s=timeout_s,
            )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = c10d.PrefixStore(f"holdfast/checkpoint/{attempt}/{_generation}", default_store())
        return cls(
            store,
            dist.get_rank(),
            dist.get_world_size(),
            timeout_s=timeout_s,
        )

    @property
    def coordinator(self) -> bool:
        return self.rank == 0

    @property
    def on_this_machine(self) -> int:
        """Number of ranks on this machine, as the launcher states it; without a launcher, all."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    def agree(
        self,
        value: Json,
        decide: Callable[[list[Json]], Json],
        *,
        timeout_s: float | None = None,
    ) -> Json:
        """Collects `value` of every rank, in rank order, lets rank 0 decide over all, and returns
        its decision on every rank. Raises RankLost.
        """
        self._turn += 1
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self.world_size == 1:
            return decide([value])
        try:
            return self._exchange(value, decide, timeout_s)
        except dist.DistError as error:  # of the store
            raise RankLost(describe_lost_store(error)) from error

    def _exchange(
        self,
        value: Json,
        decide: Callable[[list[Json]], Json],
        timeout_s: float,
    ) -> Json:
        verdict = f"{self._turn}/verdict"
        if not self.coordinator:
            self.store.set(f"{self._turn}/{self.rank}", json.dumps(value))
            self._wait([verdict], timeout_s)
            return json.loads(self.store.get(verdict))
        # Keys are never deleted: a rank that is slow may still read, and a launch makes few of
        # them.
        keys = [f"{self._turn}/{rank}" for rank in range(1, self.world_size)]
        self._wait(keys, timeout_s)
        values = [value]
        for key in keys:
            values.append(json.loads(self.store.get(key)))
        decision = decide(values)
        self.store.set(verdict, json.dumps(decision))
        return decision

    def await_readers(self) -> None:
        """Lets rank 0 wait a moment, before it ends, until the others have read the last decision.

        The store may end with rank 0, and a slower rank would take the refused connection for a
        lost peer.
        """
        if self.world_size == 1:
            return
        with suppress(RankLost, dist.DistError):
            if self.coordinator:
                keys = [f"{self._turn}/{rank}/read" for rank in range(1, self.world_size)]
                self._wait(keys, _READ_S)
            else:
                self.store.set(f"{self._turn}/{self.rank}/read", "")

    def _wait(self, keys: list[str], timeout_s: float) -> None:
        # Not store.wait(): it blocks in C code, where no signal is handled and a dead rank is not
        # noticed.
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while not self.store.check(keys):
            if time.monotonic() > deadline:
                missing = [key for key in keys if not self.store.check([key])]
                raise RankLost(f"no answer for {missing[:4]} within {timeout_s:.0f} s")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def default_store() -> c10d.Store:
    """Opens a new connection to the default store: a request that blocks holds its connection."""
    store = c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    clone: Callable[[], c10d.Store] | None = getattr(store, "clone", None)
    connection = clone() if clone else store
    connection.set_timeout(timedelta(minutes=10))
    return connection


def describe_lost_store(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"the rank that keeps the store was lost: {first_line[:160]}"


def is_lost_peer(error: BaseException) -> bool:
    """Tells whether an error means that another rank was lost: another start is worthwhile, and
    the program has no bug.
    """
    # RankLost: a peer that is silent while a start or a save is agreed on, which no socket reports.
    return isinstance(error, RankLost) or says_lost_peer(error)


T = TypeVar("T")


def outcome(call: Callable[[], Json]) -> Outcome:
    """Runs `call` and returns its outcome as JSON."""
    try:
        return {"value": call()}
    except (Damaged, EOFError) as error:
        return {"damaged": str(error)}
    except Preempted:
        return {"stopped": True}
    except InputError as error:
        return encode_failure(error)
    except StorageError as error:
        return encode_failure(_unreachable(error))


def encode_failure(error: InputError) -> Outcome:
    return {
        "input": [
            error.what,
            error.got,
            error.allowed,
            error.fix,
            isinstance(error, Later),
        ]
    }


def decode_failure(failure: Outcome) -> InputError:
    subject, got, allowed, fix, later = failure["input"]
    return (Later if later else InputError)(
        subject,
        got=got,
        allowed=allowed,
        fix=fix,
    )


def _unreachable(error: StorageError) -> InputError:
    # Not damage: falling back would throw away good checkpoints because the store is down.
    # A Transient cause: retries were given up after some time.
    is_transient = isinstance(error, Transient) or isinstance(error.__cause__, Transient)
    return (Later if is_transient else InputError)(
        "checkpoint storage cannot be read",
        got=f"{type(error).__name__}: {error}",
        allowed="a reachable store with permission to list and read",
        fix="check the URL, the credentials and the network, then start again",
    )


def worst(outcomes: list[Outcome]) -> Outcome:
    """Returns the outcome that counts for all ranks."""
    # A user's mistake outweighs damage: falling back to an older checkpoint would not fix it.
    for kind in ("input", "stopped", "damaged"):
        for rank, outcome in enumerate(outcomes):
            if kind not in outcome:
                continue
            if kind == "damaged":
                return {kind: f"rank {rank}: {outcome[kind]}"}
            return outcome
    return outcomes[0]


def agree_or_raise(
    ranks: Ranks,
    outcome: Outcome,
    decide: Callable[[list[Outcome]], Outcome] = worst,
) -> Outcome:
    """Returns the decision of rank 0 over all outcomes; an InputError or a Preempted of any rank is
    raised on all.
    """
    # After an error of this rank too: a rank that raises without answering leaves the others
    # waiting.
    decision: Outcome = ranks.agree(outcome, decide)
    if "input" in decision:
        ranks.await_readers()
        raise decode_failure(decision)
    if "stopped" in decision:
        raise Preempted(0)
    return decision


def on_every_rank(ranks: Ranks, make: Callable[[], T]) -> T:
    """Calls `make` and returns its result here, once it has succeeded on every rank."""
    results: list[T] = []
    agree_or_raise(ranks, outcome(lambda: results.append(make())))
    return results[0]
