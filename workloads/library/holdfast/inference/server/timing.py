"""How long a batch takes, as a + b n over the last batches: what admission and batching are decided by. Pure."""

from collections import deque
from math import fsum

REMEMBERED = 50


class BatchTime:
    """Least squares with a, b >= 0; without any batch the answer is 0, so that the first is let through."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=remembered)
        self._a = self._b = 0.0
        self._only = 0
        """The one size that all batches had so far; 0 when there were several, or none."""

    def observe(self, items: int, seconds: float) -> None:
        self._seen.append((items, seconds))
        sizes = {n for n, _ in self._seen}
        self._only = items if len(sizes) == 1 else 0
        self._a, self._b = _fit(self._seen)

    def seconds(self, items: int) -> float:
        if self._only:
            # One size shows no slope: a larger batch costs at most its share more, a smaller one at most the same.
            return self._a * max(1.0, items / self._only)
        return self._a + self._b * items


def _fit(seen: deque[tuple[int, float]]) -> tuple[float, float]:
    count = len(seen)
    mean_n, mean_s = fsum(n for n, _ in seen) / count, fsum(s for _, s in seen) / count
    spread = fsum((n - mean_n) ** 2 for n, _ in seen)
    if not spread:
        return mean_s, 0.0
    slope = fsum((n - mean_n) * (s - mean_s) for n, s in seen) / spread
    if slope < 0:
        return mean_s, 0.0
    if mean_s - slope * mean_n < 0:
        return 0.0, fsum(n * s for n, s in seen) / fsum(n * n for n, _ in seen)
    return mean_s - slope * mean_n, slope
