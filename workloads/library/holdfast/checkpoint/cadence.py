"""When to save: every N steps, every N seconds, or at the interval that loses least.

The interval follows Young 1974 and Daly 2006, from the measured cost of a save and the measured
hazard: events over exposure, where time without an event counts too (censored), so that a quiet run
saves less often. Until an event or some hours have been seen, a save follows the one before as long
as that costs less than 2 % of the time.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.settings import Cadence as Setting
from holdfast.vocabulary.checkpoint_interval import daly


class EverySteps:
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def due(self, step: int) -> bool:
        return step % self._steps == 0

    def saved(self, step: int) -> None:
        pass


class EverySeconds:
    """The coordinator calls `interval_s` at each plan point, so it may change as measurements come."""

    def __init__(
        self,
        interval_s: Callable[[], float],
        ranks: Ranks,
        step: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._ranks = ranks
        self._clock = clock
        self._first_step = step
        self._began = clock()
        # A launch without a save yet counts from its start, or the first plan point would save at
        # once.
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


def cadence_of(
    setting: Setting,
    auto_s: Callable[[], float],
    ranks: Ranks,
    step: int,
) -> EverySteps | EverySeconds:
    kind, value = setting
    if kind == "steps":
        return EverySteps(int(value))
    return EverySeconds(auto_s if kind == "auto" else lambda: value, ranks, step)


HOUR_S = 3600.0
# What is assumed before anything is seen, weighing as much as one event: one eviction in six hours.
PRIOR_EVENTS = 1.0
PRIOR_EXPOSURE_S = 6 * HOUR_S
# Share of the training time that saves may cost while the prior is all that is known of evictions.
UNKNOWN_CHURN_COST = 0.02
_SMOOTHING = 0.1


@dataclass(kw_only=True)
class Hazard:
    """Evictions of the whole job: with a gang, any node's end is one event."""

    events: float = 0.0
    exposure_s: float = 0.0
    _counted_to: float = field(default_factory=time.monotonic, compare=False)

    @property
    def rate(self) -> float:
        """Evictions per second: what was seen, shrunk towards the prior."""
        # With the prior the rate is never zero: a run that has seen nothing yet must not stop
        # saving.
        return (self.events + PRIOR_EVENTS) / (self.exposure_s + PRIOR_EXPOSURE_S)

    @property
    def known(self) -> bool:
        """Whether what was seen weighs more than the prior."""
        return self.events > 0 or self.exposure_s > PRIOR_EXPOSURE_S

    @classmethod
    def resumed(cls, notes: Mapping[str, Any]) -> Self:
        """`notes` of the restored checkpoint; empty at the start of a run."""
        if not notes:
            return cls()
        # lists, of which an older release had a number for each band of node age
        saved = notes["hazard"]
        return cls(
            events=sum(saved["events"]) + (not notes.get("ended")),
            exposure_s=sum(saved["exposure_s"]),
        )

    def notes(self, *, ended: bool = False) -> dict[str, Any]:
        """Up to now, censored: this launch still runs."""
        now = time.monotonic()
        self.exposure_s += now - self._counted_to
        # Or the same time would be counted again by the next save.
        self._counted_to = now
        return {
            "hazard": {
                "events": [self.events],
                "exposure_s": [self.exposure_s],
            },
            "ended": ended,
        }


class SaveCostModel:
    """Measures what a save costs while the job runs, and how long to wait until the next."""

    def __init__(self, hazard: Hazard, *, floor_s: float, ceiling_s: float) -> None:
        self.hazard = hazard
        self._floor_s = floor_s
        self._ceiling_s = ceiling_s
        self.blocking_s = self.persist_s = 0.0
        """Of the newest save: how long it held training, and how long until it was durable."""
        self._step_s = {True: 0.0, False: 0.0}
        """Smoothed, during an upload and without."""

    def observe_step(self, seconds: float, *, uploading: bool) -> None:
        before = self._step_s[uploading]
        if not before:
            self._step_s[uploading] = seconds
        else:
            self._step_s[uploading] = before + _SMOOTHING * (seconds - before)

    @property
    def step_s(self) -> float:
        return self._step_s[False] or self._step_s[True]

    @property
    def cost_s(self) -> float:
        """Training time that one save takes: being held, and running slower while it is uploaded."""
        during = self._step_s[True]
        alone = self._step_s[False]
        slowdown = max(0.0, during / alone - 1) if during and alone else 0.0
        return self.blocking_s + slowdown / (1 + slowdown) * self.persist_s

    def interval_s(self) -> float:
        best = daly(self.cost_s, 1 / self.hazard.rate) if self.cost_s else self._floor_s
        if not self.hazard.known:
            best = min(best, self.cost_s / UNKNOWN_CHURN_COST)
        # Not below the time of an upload: saves would queue, and each would protect no earlier than
        # before.
        return min(max(best, self._floor_s, self.persist_s), self._ceiling_s)
