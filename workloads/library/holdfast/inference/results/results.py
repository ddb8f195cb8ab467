"""What the worker asks of the results store: who may write an item, and that it is written once.

The key is (job, item, fingerprint); job and fingerprint are bound when the store is made. A claim
hands out a fence; only the newest fence of an item can write, so a worker thought dead cannot.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from holdfast.inference.queue.queue import Lease

MAX_VALUE_CHARS = 1024 * 1024
MAX_NESTING = 500
# An escaped NUL, and not a backslash before four digits.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

Value = Mapping[str, object]
"""What a predictor says of one item: plain JSON."""


def encode_value(value: Value) -> str:
    """The text that is stored; ValueError for what JSON or PostgreSQL cannot hold (NaN, NUL, half a surrogate pair).

    Checked here, item by item: in the database one such value would fail its whole micro-batch.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if _NUL.search(text) or len(text) > MAX_VALUE_CHARS:
        raise ValueError(f"a value may hold no NUL and at most {MAX_VALUE_CHARS} characters")
    if text.count("[") + text.count("{") > MAX_NESTING and _nesting(value) > MAX_NESTING:
        raise ValueError(f"a value may be nested {MAX_NESTING} deep")
    text.encode()
    return text


def _nesting(value: object) -> int:
    """Level by level: the depth is what a recursion could not bear."""
    depth, level = 0, [value]
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
    return depth


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).values()
    return cast("Iterable[object]", value) if isinstance(value, list | tuple) else ()


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
    void: frozenset[str]
    """Another worker claimed these meanwhile and will write them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    claim: Claim
    error_class: str
    message: str
    """Redacted: holds nothing of the item."""
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
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

    def fail(self, failures: Sequence[Failure]) -> Counted:
        """Count a processing failure of each; the last one allowed makes the item dead and writes its letter."""
        ...

    def refuse(self, leases: Sequence[Lease]) -> None:
        """Write down messages that are no items; they are not tried again."""
        ...

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Not computed; counts nothing."""
        ...

    def beat(self) -> None:
        """This worker lives."""
        ...

    def drained(self) -> bool:
        """Every item of the job is done or dead under this fingerprint."""
        ...

    def end(self, how: str) -> None:
        """This worker ends: complete, preempted or failed."""
        ...
