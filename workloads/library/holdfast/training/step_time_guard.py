"""Refuses a run whose step is longer than the window: no notice could ever be followed in time."""

import time
from collections.abc import Callable

from holdfast.contract.errors import InputError
from holdfast.contract.lifecycle import WINDOW_MARGIN_S

# The first step compiles, allocates and fills caches; the quickest of the next ones is the step.
_JUDGED = 3


class StepTimeGuard:
    def __init__(self, window_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limit_s, self._window_s = window_s - WINDOW_MARGIN_S, window_s
        self._last: float | None = None
        self._seen: list[float] = []

    def step(self) -> None:
        """After each step, until enough of them are seen."""
        if len(self._seen) == _JUDGED:
            return
        now = self._clock()
        if self._last is not None:
            self._seen.append(now - self._last)
        self._last = now
        if len(self._seen) == _JUDGED and min(self._seen) > self._limit_s:
            raise InputError(
                "a step takes longer than the grace period",
                got=f"steps of {min(self._seen):.1f} s in a window of {self._window_s:g} s",
                allowed=f"steps under {self._limit_s:g} s (the grace period minus {WINDOW_MARGIN_S:g} s to leave)",
                fix="use a smaller --batch, or a pool with the longer grace period",
            )
