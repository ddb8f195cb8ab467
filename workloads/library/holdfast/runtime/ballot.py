"""The stop agreement as a state machine: all ranks stop at one boundary, without a collective.

A boundary is a point in the loop where a rank may stop: (finished steps, earlier checks at that
step). A rank that passes a boundary is bound for the next one, and its ballot says so. As soon as
any rank requests a stop, every rank's watcher thread freezes the ballot of its main thread and
publishes it. The last one to publish announces the largest ballot: the nearest boundary that no
rank has passed.

No rank hangs: a frozen rank waits at its boundary for the announcement, which depends on watcher
threads only. Then each rank continues to the announced boundary, and all ranks take part in the
collectives of the steps in between. Ranks need not run in lockstep, so a CPU may be far ahead of
its GPU.

Each `advance` does one atomic action, so that a model checker can interleave all of them
(workloads/library/tests/runtime/test_ballot_model.py). Standard library only.
"""

# Decision: infra/decisions/0030.

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

REQUEST = "request"
COUNT = "count"
STOP_AT = "stop_at"


class Store(Protocol):
    """The operations of torch.distributed's stores that the protocol uses."""

    def set(self, key: str, value: str, /) -> object: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...


class Boundary(NamedTuple):
    step: int
    checks: int

    def next(self) -> "Boundary":
        return Boundary(self.step, self.checks + 1)

    def encode(self) -> str:
        return f"{self.step}:{self.checks}"

    @classmethod
    def decode(cls, text: bytes) -> "Boundary":
        step, checks = text.split(b":")
        return cls(int(step), int(checks))


BEFORE_ALL = Boundary(-1, 0)


class Phase(StrEnum):
    WATCH = "watch"
    FREEZE = "freeze"
    PUBLISH = "publish"
    REGISTER = "register"
    ANNOUNCE = "announce"
    AWAIT = "await"
    DECIDED = "decided"


class BallotResult(StrEnum):
    GO = "go"
    WAIT = "wait"
    STOP = "stop"


@dataclass(kw_only=True)
class Ballot:
    """The ballot of one rank. The main thread calls `pass_boundary`, the watcher `advance`.

    The two share `bound_for`, `phase` and `stop_at`; StopAgreement holds its lock around
    `pass_boundary` and around the actions of `advance` that stay in memory (`is_local`).
    """

    rank: int
    world_size: int
    bound_for: Boundary = field(default=BEFORE_ALL)
    """The first boundary at which this rank can still stop."""
    phase: Phase = Phase.WATCH
    stop_at: Boundary | None = None

    @property
    def is_frozen(self) -> bool:
        return self.phase not in (Phase.WATCH, Phase.FREEZE)

    @property
    def is_local(self) -> bool:
        """True if the next `advance` uses no store."""
        return self.phase in (Phase.FREEZE, Phase.DECIDED)

    def pass_boundary(self, here: Boundary) -> BallotResult:
        if self.stop_at is not None:
            return BallotResult.STOP if here >= self.stop_at else BallotResult.GO
        if self.is_frozen:
            return BallotResult.WAIT
        # From here on this rank owes its peers the collectives up to the next boundary.
        self.bound_for = here.next()
        return BallotResult.GO

    def retire(self) -> None:
        """Casts the ballot of a main thread that is past its last boundary."""
        if self.phase is Phase.WATCH:
            self.phase = Phase.FREEZE

    def advance(self, store: Store, *, reason: str) -> None:
        """Does the watcher's next atomic action. `reason`: why this process stops, or empty."""
        match self.phase:
            case Phase.WATCH:
                self._watch(store, reason)
            case Phase.FREEZE:
                self.phase = Phase.PUBLISH
            case Phase.PUBLISH:
                store.set(f"ballot/{self.rank}", self.bound_for.encode())
                self.phase = Phase.REGISTER
            case Phase.REGISTER:
                is_last = store.add(COUNT, 1) == self.world_size
                self.phase = Phase.ANNOUNCE if is_last else Phase.AWAIT
            case Phase.ANNOUNCE:
                store.set(STOP_AT, self._find_largest(store).encode())
                self.phase = Phase.AWAIT
            case Phase.AWAIT:
                if store.check([STOP_AT]):
                    self.stop_at = Boundary.decode(store.get(STOP_AT))
                    self.phase = Phase.DECIDED
            case Phase.DECIDED:
                pass

    def _find_largest(self, store: Store) -> Boundary:
        # Every ballot is in the store and final: the counter was raised after each of them.
        ballots: list[Boundary] = []
        for rank in range(self.world_size):
            ballots.append(Boundary.decode(store.get(f"ballot/{rank}")))
        return max(ballots)

    def _watch(self, store: Store, reason: str) -> None:
        if reason:
            # Several ranks may write it at once. Any of their texts will do: it is only shown.
            store.set(REQUEST, f"{reason} on rank {self.rank}")
            self.phase = Phase.FREEZE
        elif store.check([REQUEST]):
            self.phase = Phase.FREEZE
