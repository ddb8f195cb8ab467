"""The results store as the worker sees it: who may write an item, and that it is written once.

The key is (job, item, fingerprint); job and fingerprint are bound when the store is made. A claim
hands out a fence; only the newest fence of an item can write, so a worker thought dead cannot.
"""

# Why it is so: infra/decisions/0040.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.inference.queue.protocol import Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The right to write one item, until somebody claims it again."""

    item: str
    fence: int
    failures: int = field(default=0, compare=False)
    """Of its processing, so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    done: frozenset[str]
    """Committed, by this call or by an earlier one: may be acked."""
    stale: frozenset[str]
    """Another worker claimed these meanwhile and will write them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    claim: Claim
    error_class: str
    message: str
    """Redacted: holds nothing of the item."""
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCounts:
    """After a failure: items that may be tried again, and items that are dead, with their failures so far."""

    retry: Mapping[str, int] = field(default_factory=dict[str, int])
    dead: Mapping[str, int] = field(default_factory=dict[str, int])


class Results(Protocol):
    def claim(self, items: Sequence[str]) -> dict[str, Claim]:
        """A claim for each item that is neither done nor dead; the others are missing from the answer."""
        ...

    def store(self, values: Mapping[Claim, str]) -> Stored:
        """Values as `encode_value` made them. One transaction. Repeating it after a lost answer changes nothing and answers the same."""
        ...

    def fail(self, failures: Sequence[Failure]) -> FailureCounts:
        """Count a processing failure of each; the last one allowed makes the item dead and writes its dead letter."""
        ...

    def reject(self, leases: Sequence[Lease]) -> None:
        """A dead letter for each message that is no item; they are not tried again."""
        ...

    def release_claims(self, claims: Sequence[Claim]) -> None:
        """Not computed; counts nothing."""
        ...

    def heartbeat(self) -> None:
        """This worker is alive."""
        ...

    def drained(self) -> bool:
        """Every item of the job is done or dead under this fingerprint."""
        ...

    def end(self, how: str) -> None:
        """This worker ends: complete, preempted or failed."""
        ...
