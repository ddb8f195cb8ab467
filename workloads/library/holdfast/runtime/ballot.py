"""The stop agreement as a state machine: every rank stops at the same boundary, found without a
collective.

A boundary is a place in the loop where a rank may stop: (steps done, how often it checked there). A
rank that is let through a boundary is bound for the next one, and its ballot says so. As soon as
any rank requests a stop, every rank's watcher thread freezes its main thread's ballot, publishes
it, and the last to publish announces the largest: the nearest boundary that no rank has passed.

Why no rank hangs: a frozen rank waits at its boundary for the announcement, which watcher threads
alone bring about; then each rank runs on to the announced boundary, and all of them take part in
the collectives of the steps between. Nothing assumes that ranks run in lockstep, so a CPU far ahead
of its GPU is fine.

Each `advance` does one atomic action, so a model checker can interleave them all
(workloads/library/tests/runtime/test_ballot_model.py). Standard library only.
"""

# Why it is so: infra/decisions/0030.

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

REQUEST = "request"
COUNT = "count"
STOP_AT = "stop_at"


class Store(Protocol):
    """What the protocol needs of torch.distributed's stores."""

    def set(self, key: str, value: str, /) -> object: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...


class Boundary(NamedTuple):
    step: int
    asked: int

    def after(self) -> "Boundary":
        return Boundary(self.step, self.asked + 1)

    def encode(self) -> str:
        return f"{self.step}:{self.asked}"

    @classmethod
    def decode(cls, text: bytes) -> "Boundary":
        step, asked = text.split(b":")
        return cls(int(step), int(asked))


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
    """One rank's part. `pass_boundary` belongs to the main thread, `advance` to the watcher.

    The two share `bound_for`, `phase` and `stop_at`; StopAgreement holds its lock around
    `pass_boundary` and around the actions of `advance` that stay in memory (`is_local`).
    """

    rank: int
    world_size: int
    bound_for: Boundary = field(default=BEFORE_ALL)
    """This rank stops at no boundary before this one."""
    phase: Phase = Phase.WATCH
    stop_at: Boundary | None = None

    @property
    def frozen(self) -> bool:
        return self.phase not in (Phase.WATCH, Phase.FREEZE)

    @property
    def is_local(self) -> bool:
        """Whether the next `advance` touches no store."""
        return self.phase in (Phase.FREEZE, Phase.DECIDED)

    def pass_boundary(self, here: Boundary) -> BallotResult:
        if self.stop_at is not None:
            return BallotResult.STOP if here >= self.stop_at else BallotResult.GO
        if self.frozen:
            return BallotResult.WAIT
        # From here on this rank owes its peers the collectives up to the next boundary.
        self.bound_for = here.after()
        return BallotResult.GO

    def retire(self) -> None:
        """The main thread is past its last boundary: cast the ballot without a question."""
        if self.phase is Phase.WATCH:
            self.phase = Phase.FREEZE

    def advance(self, store: Store, *, asked: str) -> None:
        """The watcher's next atomic action; `asked` is this process's own reason to stop, or empty."""
        match self.phase:
            case Phase.WATCH:
                self._watch(store, asked)
            case Phase.FREEZE:
                self.phase = Phase.PUBLISH
            case Phase.PUBLISH:
                store.set(f"ballot/{self.rank}", self.bound_for.encode())
                self.phase = Phase.REGISTER
            case Phase.REGISTER:
                last = store.add(COUNT, 1) == self.world_size
                self.phase = Phase.ANNOUNCE if last else Phase.AWAIT
            case Phase.ANNOUNCE:
                # Every ballot is in the store and final: the counter was raised after each of them.
                ballots = [
                    Boundary.decode(store.get(f"ballot/{rank}")) for rank in range(self.world_size)
                ]
                store.set(STOP_AT, max(ballots).encode())
                self.phase = Phase.AWAIT
            case Phase.AWAIT:
                if store.check([STOP_AT]):
                    self.stop_at = Boundary.decode(store.get(STOP_AT))
                    self.phase = Phase.DECIDED
            case Phase.DECIDED:
                pass

    def _watch(self, store: Store, asked: str) -> None:
        if asked:
            # Several ranks may write it at once: either text is a reason, and nothing else is read
            # from it.
            store.set(REQUEST, f"{asked} on rank {self.rank}")
            self.phase = Phase.FREEZE
        elif store.check([REQUEST]):
            self.phase = Phase.FREEZE
