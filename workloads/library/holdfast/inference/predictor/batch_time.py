"""An estimate of the time that a batch takes, learned from earlier ones. Pure, without a clock."""

from collections import deque
from math import fsum

_REMEMBERED = 50


class BatchTime:
    """Estimates the time of a batch of n items as a + b n, for admission and batching.

    The fit uses least squares with a, b >= 0 over the last batches. Without any batch the estimate
    is 0, so that the first one is admitted.

    Batches above the largest remembered size are estimated like that size. A slope that small
    batches made too steep would keep all batches small, and nothing would ever correct it; one that
    is too flat is corrected by the next batch.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        self._a = 0.0
        self._b = 0.0
        self._largest = 0

    def observe(self, items: int, seconds: float) -> None:
        self._samples.append((items, seconds))
        self._a, self._b = _fit(self._samples)
        self._largest = max(n for n, _ in self._samples)

    def seconds(self, items: int) -> float:
        return self._a + self._b * min(items, self._largest)


def _fit(samples: deque[tuple[int, float]]) -> tuple[float, float]:
    count = len(samples)
    mean_n = fsum(n for n, _ in samples) / count
    mean_s = fsum(s for _, s in samples) / count
    variance = fsum((n - mean_n) ** 2 for n, _ in samples)
    if not variance:
        return mean_s, 0.0
    covariance = fsum((n - mean_n) * (s - mean_s) for n, s in samples)
    slope = covariance / variance
    if slope < 0:
        return mean_s, 0.0
    intercept = mean_s - slope * mean_n
    if intercept < 0:
        return 0.0, _fit_through_origin(samples)
    return intercept, slope


def _fit_through_origin(samples: deque[tuple[int, float]]) -> float:
    products = fsum(n * s for n, s in samples)
    squares = fsum(n * n for n, _ in samples)
    return products / squares
