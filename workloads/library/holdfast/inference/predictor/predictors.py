"""What computes: bodies in, one JSON value for each out, in order.

A predictor must answer the same for an item whatever else is in its micro-batch, on whichever worker:
that is what makes a run with evictions equal to one without.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from holdfast.inference.results.results import Value


class PredictorBroken(RuntimeError):
    """The device or the model, not an item, is at fault: leave, and let another node try."""


class ProcessDied(RuntimeError):
    """The predicting process ended, or did not answer in time: an item's fault, or the device's."""


class LoaderFailed(RuntimeError):
    """load() raised what nobody expects: a bug, which another node would meet too."""


class ItemFault(Exception):
    """An exception of the predictor, told by the process in which it was raised."""

    def __init__(self, error_class: str, message: str) -> None:
        self.error_class = error_class
        super().__init__(message)


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


class ByteEntropy:
    """Bits per byte of a body's histogram: a stand-in that needs no model and no torch."""

    configuration: Mapping[str, object] = {"predictor": "entropy", "version": 1}

    def load(self) -> None:
        """Nothing to load."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        return [{"score": _entropy(body), "bytes": len(body)} for body in bodies]


def _entropy(body: bytes) -> float:
    counts = Counter(body).values()
    return -math.fsum(n / len(body) * math.log2(n / len(body)) for n in counts) if body else 0.0
