"""When to save: every N steps, every so many seconds, or at the interval that loses least.

Every rank must save at the same step. Steps need no agreement. For seconds the ranks agree only at plan
points: steps, themselves agreed, at which the coordinator looks at its clock and decides whether to save and
which step is the next plan point. Between plan points `due` is one comparison.
"""

import time
from collections.abc import Callable

from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.settings import Cadence as Setting


class EverySteps:
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def due(self, step: int) -> bool:
        return step % self._steps == 0

    def saved(self, step: int) -> None:
        pass


class EverySeconds:
    """`interval_s` is asked on the coordinator at each plan point, so it may change as measurements come."""

    def __init__(
        self, interval_s: Callable[[], float], ranks: Ranks, step: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s, self._ranks, self._clock = interval_s, ranks, clock
        self._first_step, self._began = step, clock()
        # A launch without a save yet counts from its start, or the first plan point would save at once.
        self._last_save = clock()
        self._next_point = step + 2  # the first step compiles and warms up

    def due(self, step: int) -> bool:
        if step < self._next_point:
            return False
        save, self._next_point = self._ranks.agree(None, lambda _: self._plan(step))
        return bool(save)

    def saved(self, step: int) -> None:
        self._last_save = self._clock()

    def _plan(self, step: int) -> tuple[bool, int]:
        now = self._clock()
        done = step - self._first_step
        # Over the whole launch, saves included: that is what a second between saves is made of.
        step_s = (now - self._began) / done
        left_s = self._last_save + self._interval_s() - now
        save = left_s < step_s / 2
        ahead_s = self._interval_s() if save else left_s
        # An early estimate of the step time is a bad one: look again before trusting it for long.
        return save, step + max(1, min(int(ahead_s / step_s), done))


def cadence_of(setting: Setting, auto_s: Callable[[], float], ranks: Ranks, step: int) -> EverySteps | EverySeconds:
    kind, value = setting
    if kind == "steps":
        return EverySteps(int(value))
    return EverySeconds(auto_s if kind == "auto" else lambda: value, ranks, step)
