"""How many items a micro-batch may have so that it lasts no longer than a drain can wait."""


class BatchSizer:
    """Starts small and doubles at most, so that a slow predictor is met with few items at stake."""

    def __init__(self, *, most: int, longest_s: float) -> None:
        self._most, self._longest_s = most, longest_s
        self.size = min(4, most)

    def observe(self, items: int, seconds: float) -> None:
        """One prediction of `items` took `seconds`."""
        fits = items * self._longest_s / max(seconds, 1e-9)
        self.size = max(1, int(min(self._most, 2 * self.size, fits)))
