"""Bits per byte of a body's histogram: a stand-in that needs no model and no torch."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.inference.values import Value


class ByteEntropy:
    configuration: Mapping[str, object] = {"predictor": "entropy", "version": 1}

    def load(self) -> None:
        """Nothing to load."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        return [{"score": _entropy(body), "bytes": len(body)} for body in bodies]


def _entropy(body: bytes) -> float:
    counts = Counter(body).values()
    return -math.fsum(n / len(body) * math.log2(n / len(body)) for n in counts) if body else 0.0
