"""What the worker's threads hand to each other: claimed items, and what became of a micro-batch of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.inference.items import Item
from holdfast.inference.results.protocol import Claim, Failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    item: Item
    claim: Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one micro-batch."""

    values: Mapping[Claim, str]
    failures: Sequence[Failure] = ()
    seconds: float = 0.0
    """What predicting it took."""
