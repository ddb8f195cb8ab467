"""The stop agreement: a notice on any rank stops all ranks at one boundary.

Guarantees: while no stop is requested, `should_stop` costs a lock and a comparison (no store, no
collective). After a notice it returns True on all ranks at the same boundary, at most one step
after all have heard of it; a job of one process stops at its next boundary. If peers are dead it
returns True after `patience_s` with `agreed` False, and then no joint checkpoint may be attempted.
The protocol is in ballot.py.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

from holdfast.runtime import shutdown as notices
from holdfast.runtime.ballot import (
    BEFORE_ALL,
    REQUEST,
    Ballot,
    BallotResult,
    Boundary,
    Phase,
    Store,
)
from holdfast.runtime.shutdown import Shutdown

# A part of a window of 15 s: the save in flight and the exit need the rest. infra/decisions/0030.
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
        self._world_size = world_size
        self._patience_s = patience_s
        # One store request per rank and interval: a thousand ranks make up to 5,000 a second.
        if interval_s is None:
            interval_s = 0.1 + world_size / 10_000
        self._interval_s = interval_s
        self._ballot = Ballot(rank=rank, world_size=world_size)
        self._boundary = BEFORE_ALL
        self._lock = threading.Lock()
        self._settled = threading.Event()  # decided, or the store is lost
        self._closing = False
        self.lost: BaseException | None = None
        """The error with which the store stopped answering."""
        self._gave_up = False
        self._watcher = threading.Thread(target=self._watch, name="stop-agreement", daemon=True)
        self._watcher.start()

    @property
    def requested(self) -> bool:
        """True if any rank has a notice, as far as this rank knows."""
        return self.shutdown.requested

    @property
    def agreed(self) -> bool:
        """True if all ranks stop here; False after peers or the store stopped answering."""
        return self._ballot.stop_at is not None and not self._gave_up

    @property
    def reason(self) -> str:
        return self.shutdown.reason

    def should_stop(self, step: int) -> bool:
        """Returns True if this rank stops after `step` steps.

        Call it equally often on all ranks.
        """
        # No other rank is asked: a loop of short steps must not outrun its own watcher.
        if self._world_size == 1 and self.requested:
            self._settled.wait(self._patience_s)
        with self._lock:
            if step == self._boundary.step:
                self._boundary = self._boundary.next()
            else:
                self._boundary = Boundary(step, 0)
            verdict = self._ballot.pass_boundary(self._boundary)
        if verdict is BallotResult.WAIT:
            return self._wait_for_peers()
        # Without the store the ranks cannot agree: each follows its own notice.
        if self.lost is not None and self._ballot.stop_at is None:
            return self.requested
        return verdict is BallotResult.STOP

    def _wait_for_peers(self) -> bool:
        is_settled = self._settled.wait(self._patience_s)
        if is_settled and self.lost is None:
            return self._ballot.pass_boundary(self._boundary) is BallotResult.STOP
        # A joint save would wait for the same peers until the window is over.
        self._gave_up = True
        return True

    def close(self) -> None:
        """Casts the ballot of this rank, so that ranks that still run need not wait for it."""
        self._closing = True
        self._watcher.join(_CLOSE_S)

    def _watch(self) -> None:
        try:
            self._participate()
        except (RuntimeError, OSError) as error:  # torch's store errors are RuntimeErrors
            self.lost = error
        self._settled.set()

    def _participate(self) -> None:
        while self._ballot.phase is Phase.WATCH and not self._closing:
            is_requested = self.shutdown.wait(self._interval_s)
            reason = self.shutdown.reason if is_requested else ""
            self._ballot.advance(self._store, reason=reason)
        if self._ballot.phase is Phase.WATCH:
            self._ballot.retire()
        # A peer's notice becomes our own: otherwise our window would not start and nothing would
        # enforce it.
        elif not self.shutdown.requested:
            self.shutdown.request(self._store.get(REQUEST).decode())
        while self._ballot.phase is not Phase.DECIDED:
            is_waiting = self._ballot.phase is Phase.AWAIT
            if is_waiting and self._closing:
                return
            with self._lock if self._ballot.is_local else nullcontext():
                self._ballot.advance(self._store, reason="")
            if is_waiting:
                time.sleep(_ANSWER_POLL_S)


class OneProcessStore:
    """A Store in memory, for a job of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str, /) -> None:
        self._values[key] = value

    def get(self, key: str, /) -> bytes:
        return self._values[key].encode()

    def add(self, key: str, amount: int, /) -> int:
        total = int(self._values.get(key, "0")) + amount
        self._values[key] = str(total)
        return total

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._values for key in keys)


def stop_agreement(
    store: Store | None,
    rank: int,
    world_size: int,
    *,
    shutdown: Shutdown | None = None,
) -> StopAgreement:
    """Starts the agreement of this job, over `store` or, with None, within this process.

    A second agreement needs a store with other keys.
    """
    # A blocking request occupies a torch store's connection, so the watcher gets a clone.
    clone: Callable[[], Store] | None = getattr(store, "clone", None)
    if store is None:
        store = OneProcessStore()
    elif clone is not None:
        store = clone()
    return StopAgreement(
        store,
        rank=rank,
        world_size=world_size,
        shutdown=shutdown or notices.of_process(),
    )
