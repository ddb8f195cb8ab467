"""What the ranks of a job agree on, through torch.distributed's store, never through a collective.

At start, at each save and at the stop, not in other steps. Every rank calls `agree` equally often
and in the same order. One rank's error is every rank's: each reports its outcome, the worst counts,
and all raise the same error, so no rank waits for one that has given up.

Decision: infra/decisions/0021.
"""

import json
import os
import time
from collections.abc import Callable
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

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.05

_generation = 0


class Ranks:
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
        """The default process group where there is one, else this process alone."""
        global _generation
        # A second Checkpointer of the process must not read the answers of the first.
        _generation += 1  # every rank makes its checkpointers in the same order
        if not (dist.is_available() and dist.is_initialized()):
            return cls(OneProcessStore(), 0, 1, timeout_s=timeout_s)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = c10d.PrefixStore(f"holdfast/checkpoint/{attempt}/{_generation}", default_store())
        return cls(store, dist.get_rank(), dist.get_world_size(), timeout_s=timeout_s)

    @property
    def coordinator(self) -> bool:
        return self.rank == 0

    @property
    def on_this_machine(self) -> int:
        """As the launcher says; all of them where none did."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    def agree(
        self, mine: Json, decide: Callable[[list[Json]], Json], *, timeout_s: float | None = None
    ) -> Json:
        """Every rank brings `mine`; rank 0 decides over all of it, in rank order; all return its
        decision. Raises RankLost.
        """
        self._turn += 1
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self.world_size == 1:
            return decide([mine])
        try:
            return self._decided(mine, decide, timeout_s)
        except dist.DistError as error:  # of the store
            raise RankLost(
                f"the rank that keeps the store is gone: {str(error).partition(chr(10))[0][:160]}"
            ) from error

    def _decided(self, mine: Json, decide: Callable[[list[Json]], Json], timeout_s: float) -> Json:
        verdict = f"{self._turn}/verdict"
        if not self.coordinator:
            self.store.set(f"{self._turn}/{self.rank}", json.dumps(mine))
            self._wait([verdict], timeout_s)
            return json.loads(self.store.get(verdict))
        # Keys are never deleted: a rank that is slow may still read, and a launch makes few of
        # them.
        others = [f"{self._turn}/{rank}" for rank in range(1, self.world_size)]
        self._wait(others, timeout_s)
        decision = decide([mine, *(json.loads(self.store.get(key)) for key in others)])
        self.store.set(verdict, json.dumps(decision))
        return decision

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
    """A connection of our own: a request that blocks holds the connection it was made on."""
    store = c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    clone: Callable[[], c10d.Store] | None = getattr(store, "clone", None)
    mine = clone() if clone else store
    mine.set_timeout(timedelta(minutes=10))
    return mine


def is_lost_peer(error: BaseException) -> bool:
    """Whether it says that another rank is gone: worth another start, and no bug of the program's."""
    # RankLost: a peer that is silent while a start or a save is agreed on, which no socket reports.
    return isinstance(error, RankLost) or says_lost_peer(error)


T = TypeVar("T")


def outcome(call: Callable[[], Json]) -> dict[str, Any]:
    """How `call` went, as JSON."""
    try:
        return {"value": call()}
    except (Damaged, EOFError) as error:
        return {"damaged": str(error)}
    except Preempted:
        return {"stopped": True}
    except InputError as error:
        return failure_of(error)
    except StorageError as error:
        return failure_of(_unreachable(error))


def failure_of(error: InputError) -> dict[str, Any]:
    return {
        "input": [
            error.what,
            error.got,
            error.allowed,
            error.fix,
            isinstance(error, Later),
        ]
    }


def error_of(failure: dict[str, Any]) -> InputError:
    what, got, allowed, fix, later = failure["input"]
    return (Later if later else InputError)(
        what,
        got=got,
        allowed=allowed,
        fix=fix,
    )


def _unreachable(error: StorageError) -> InputError:
    # Not damage: falling back would throw away good checkpoints because the store is down.
    # Given up on, after some time.
    away = isinstance(error, Transient) or isinstance(error.__cause__, Transient)
    return (Later if away else InputError)(
        "checkpoint storage cannot be read",
        got=f"{type(error).__name__}: {error}",
        allowed="a reachable store with permission to list and read",
        fix="check the URL, the credentials and the network, then start again",
    )


def worst(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    for kind in ("input", "stopped", "damaged"):
        for rank, found in enumerate(outcomes):
            # A user's mistake outweighs damage: falling back to an older checkpoint would not fix
            # it.
            if kind in found:
                if kind == "damaged":
                    return {kind: f"rank {rank}: {found[kind]}"}
                return found
    return outcomes[0]


def agreed(
    ranks: Ranks,
    mine: dict[str, Any],
    decide: Callable[[list[dict[str, Any]]], dict[str, Any]] = worst,
) -> dict[str, Any]:
    """What rank 0 decides over all outcomes; an InputError or a Preempted of any rank is raised on
    all.
    """
    # Also after an error of this rank's own: a rank that raises without answering leaves the others
    # waiting.
    decision: dict[str, Any] = ranks.agree(mine, decide)
    if "input" in decision:
        raise error_of(decision)
    if "stopped" in decision:
        raise Preempted(0)
    return decision


def on_every_rank(ranks: Ranks, make: Callable[[], T]) -> T:
    """What `make` gives here, once it has succeeded everywhere."""
    made: list[T] = []
    agreed(ranks, outcome(lambda: made.append(make())))
    return made[0]
