"""How long a batch takes, learned from those before. Pure: the times are the caller's."""

from collections import deque
from math import fsum

_REMEMBERED = 50


class BatchTime:
    """How long a batch takes, as a + b n over the last ones: what admission and batching are
    decided by.

    Least squares with a, b >= 0; without any batch the answer is 0, so that the first is let
    through.

    Beyond the largest batch remembered it takes no more time: a slope guessed from small batches,
    and guessed too steep, would keep all batches small, and nothing would ever show that it was
    wrong. Too flat, the next one does.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        self._a = self._b = 0.0
        self._largest = 0

    def observe(self, items: int, seconds: float) -> None:
        self._seen.append((items, seconds))
        self._a, self._b = _fit(self._seen)
        self._largest = max(n for n, _ in self._seen)

    def seconds(self, items: int) -> float:
        return self._a + self._b * min(items, self._largest)


def _fit(seen: deque[tuple[int, float]]) -> tuple[float, float]:
    count = len(seen)
    mean_n = fsum(n for n, _ in seen) / count
    mean_s = fsum(s for _, s in seen) / count
    spread = fsum((n - mean_n) ** 2 for n, _ in seen)
    if not spread:
        return mean_s, 0.0
    slope = fsum((n - mean_n) * (s - mean_s) for n, s in seen) / spread
    if slope < 0:
        return mean_s, 0.0
    if mean_s - slope * mean_n < 0:
        return 0.0, fsum(n * s for n, s in seen) / fsum(n * n for n, _ in seen)
    return mean_s - slope * mean_n, slope
