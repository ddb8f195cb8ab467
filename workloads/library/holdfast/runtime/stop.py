"""StopAgreement: a notice on any rank stops all ranks at one boundary, with no collective in any
step.

Guarantees: `should_stop` costs a lock and a comparison while no stop is requested (no store, no
collective); after a notice it answers true on all ranks at the same boundary, at most one step
later; when peers are dead it answers true after `patience_s` with `agreed` false, and then no joint
checkpoint may be attempted. The protocol itself is ballot.py.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

from holdfast.runtime import shutdown as notices
from holdfast.runtime.ballot import REQUEST, Ballot, BallotResult, Boundary, Phase, Store
from holdfast.runtime.shutdown import Shutdown

# Of a window of 15 s: the save in flight and the way out need the rest. infra/decisions/0030.
PATIENCE_S = 4.0
_CLOSE_S = 2.0
_ANSWER_POLL_S = 0.01


class StopAgreement:
    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world_size: int,
        shutdown: Shutdown,
        patience_s: float = PATIENCE_S,
        interval_s: float | None = None,
    ) -> None:
        self._store = store
        self.shutdown = shutdown
        self._patience_s = patience_s
        # One store request per rank and interval: keeps a thousand ranks under 5,000 requests a
        # second.
        self._interval_s = interval_s if interval_s is not None else 0.1 + world_size / 10_000
        self._ballot = Ballot(rank=rank, world_size=world_size)
        self._here = Boundary(-1, 0)
        self._lock = threading.Lock()
        self._settled = threading.Event()  # decided, or the store is lost
        self._closing = False
        self.lost: BaseException | None = None
        """Why the store no longer answers."""
        self._gave_up = False
        self._watcher = threading.Thread(
            target=self._watch,
            name="stop-agreement",
            daemon=True,
        )
        self._watcher.start()

    @property
    def requested(self) -> bool:
        """Whether any rank has a notice, as far as this rank knows."""
        return self.shutdown.requested

    @property
    def agreed(self) -> bool:
        """Whether all ranks stop here; false after peers or the store went silent."""
        return self._ballot.stop_at is not None and not self._gave_up

    @property
    def reason(self) -> str:
        return self.shutdown.reason

    def should_stop(self, step: int) -> bool:
        """Whether to leave now, `step` steps being done. Ask equally often on every rank."""
        with self._lock:
            asked = self._here.asked + 1 if step == self._here.step else 0
            self._here = Boundary(step, asked)
            verdict = self._ballot.pass_boundary(self._here)
        if verdict is BallotResult.WAIT:
            return self._wait_for_peers()
        # Without the store each rank follows its own notice: the ranks cannot agree any more.
        if self.lost is not None and self._ballot.stop_at is None:
            return self.requested
        return verdict is BallotResult.STOP

    def _wait_for_peers(self) -> bool:
        settled = self._settled.wait(self._patience_s)
        if settled and self.lost is None:
            return self._ballot.pass_boundary(self._here) is BallotResult.STOP
        # A joint save would wait for the same peers until the window is over.
        self._gave_up = True
        return True

    def close(self) -> None:
        """Cast this rank's ballot, so that ranks still running need not wait for one that has
        finished.
        """
        self._closing = True
        self._watcher.join(_CLOSE_S)

    def _watch(self) -> None:
        try:
            self._take_part()
        except (RuntimeError, OSError) as error:  # torch's store errors are RuntimeErrors
            self.lost = error
        self._settled.set()

    def _take_part(self) -> None:
        while self._ballot.phase is Phase.WATCH and not self._closing:
            reason = self.shutdown.reason if self.shutdown.wait(self._interval_s) else ""
            self._ballot.advance(self._store, asked=reason)
        if self._ballot.phase is Phase.WATCH:
            self._ballot.retire()
        # The peers' notice becomes this process's own, or its window would not begin and nothing
        # would enforce it.
        elif not self.shutdown.requested:
            self.shutdown.request(self._store.get(REQUEST).decode())
        while self._ballot.phase is not Phase.DECIDED:
            waiting = self._ballot.phase is Phase.AWAIT
            if waiting and self._closing:
                return
            with self._lock if self._ballot.is_local else nullcontext():
                self._ballot.advance(self._store, asked="")
            if waiting:
                time.sleep(_ANSWER_POLL_S)


class OneProcessStore:
    """The same four operations for a job of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str, /) -> None:
        self._values[key] = value

    def get(self, key: str, /) -> bytes:
        return self._values[key].encode()

    def add(self, key: str, amount: int, /) -> int:
        self._values[key] = str(int(self._values.get(key, "0")) + amount)
        return int(self._values[key])

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._values for key in keys)


def stop_agreement(
    store: Store | None,
    rank: int,
    world_size: int,
    *,
    shutdown: Shutdown | None = None,
) -> StopAgreement:
    """The agreement of this job: over `store` with several ranks, within the process with one. A
    second agreement needs a store with other keys.

    A blocking request holds a torch store's connection, so the watcher gets a clone of its own.
    """
    clone: Callable[[], Store] | None = getattr(store, "clone", None)
    own = OneProcessStore() if store is None else clone() if clone else store
    return StopAgreement(
        own,
        rank=rank,
        world_size=world_size,
        shutdown=shutdown or notices.of_process(),
    )
