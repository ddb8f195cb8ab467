"""What computes: bodies in, one JSON value for each out, in order.

A predictor must answer the same for an item whatever else is in its micro-batch, on whichever worker:
that is what makes a run with evictions equal to one without.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from holdfast.inference.values import Value


class Predictor(Protocol):
    @property
    def configuration(self) -> Mapping[str, object]:
        """Everything that decides a result: model commit, settings. Its hash is part of every result's key."""
        ...

    def load(self) -> None:
        """Called once, before the first batch; may take minutes."""
        ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        """One value for each body. An exception fails the batch, which is then halved to find the bad item."""
        ...


@runtime_checkable
class Pipelined(Predictor, Protocol):
    """One that can be handed its next micro-batch while it is busy, so that its device does not wait for a hand-over."""

    seconds: float
    """What the last answer took, its waiting not counted."""

    def prepare(self, bodies: Sequence[bytes]) -> None:
        """Begin with these when everything before is answered; `predict` of the same then waits for the rest."""
        ...
