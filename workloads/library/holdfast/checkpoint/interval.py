"""How often to save: the interval that loses least, from measured costs and a measured hazard.

Pure arithmetic; `SaveCostModel` collects the measurements. Sources:
Young 1974 and Daly 2006 for the interval; the hazard is events over exposure by node age, where time
without an event counts too (censored), so that a quiet run lengthens its own interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

HOUR_S = 3600.0
# Upper ends of the node ages that are counted apart: young nodes are taken far more often than old ones.
# Of 1,442 preemptible VMs (arXiv 1911.05160) the hazard of the first hour was some 18 times that of hours 6 to 23.
# They are CPU machines of 2019: the bands come from there, the rates do not.
AGE_BANDS_S = (1 * HOUR_S, 3 * HOUR_S, 6 * HOUR_S, math.inf)
# What is assumed before anything is seen, weighing as much as one event: one eviction in six hours.
PRIOR_EVENTS = 1.0
PRIOR_EXPOSURE_S = 6 * HOUR_S
_SMOOTHING = 0.1


def young_s(cost_s: float, mtbf_s: float) -> float:
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Compute time between saves that minimises what saves and repeated work cost together."""
    # Daly's own bound: his series holds below it only.
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young_s(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def waste(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Share of time lost to saves and to work done twice, to first order."""
    return cost_s / interval_s + interval_s / (2 * mtbf_s)


@dataclass(kw_only=True)
class Hazard:
    """Evictions of the whole job: with a gang, any node's end is one event."""

    events: list[float] = field(default_factory=lambda: [0.0] * len(AGE_BANDS_S))
    exposure_s: list[float] = field(default_factory=lambda: [0.0] * len(AGE_BANDS_S))

    def observe(self, from_age_s: float, to_age_s: float, *, evicted: bool) -> None:
        """The job ran while its nodes aged from one age to the other; without `evicted` the time is censored."""
        low = 0.0
        for band, high in enumerate(AGE_BANDS_S):
            self.exposure_s[band] += max(0.0, min(high, to_age_s) - max(low, from_age_s))
            low = high
        self.events[_band(to_age_s)] += float(evicted)

    def rate(self, age_s: float) -> float:
        """Evictions per second at this age: what was seen, shrunk towards the prior."""
        band = _band(age_s)
        # With the prior the rate is never zero: a run that has seen nothing yet must not stop saving.
        return (self.events[band] + PRIOR_EVENTS) / (self.exposure_s[band] + PRIOR_EXPOSURE_S)

    def encode(self) -> dict[str, Sequence[float]]:
        return {"events": list(self.events), "exposure_s": list(self.exposure_s)}

    @classmethod
    def decode(cls, saved: Mapping[str, Any]) -> Self:
        events, exposure_s = ([float(n) for n in saved[name]] for name in ("events", "exposure_s"))
        if len(events) != len(AGE_BANDS_S) or len(exposure_s) != len(AGE_BANDS_S):
            return cls()  # of a release with other bands: begin again
        return cls(events=events, exposure_s=exposure_s)


def _band(age_s: float) -> int:
    return next(band for band, high in enumerate(AGE_BANDS_S) if age_s < high)


class SaveCostModel:
    """Measures what a save costs while the job runs, and how long to wait until the next."""

    def __init__(self, hazard: Hazard, *, floor_s: float, ceiling_s: float) -> None:
        self.hazard = hazard
        self._floor_s, self._ceiling_s = floor_s, ceiling_s
        self._blocking_s = 0.0
        self._persist_s = 0.0
        self._step_s = {True: 0.0, False: 0.0}
        """Smoothed, beside an upload and without."""

    def observe_step(self, seconds: float, *, uploading: bool) -> None:
        before = self._step_s[uploading]
        self._step_s[uploading] = seconds if not before else before + _SMOOTHING * (seconds - before)

    def observe_blocking(self, blocking_s: float) -> None:
        self._blocking_s = blocking_s

    def observe_upload(self, seconds: float) -> None:
        self._persist_s = seconds

    @property
    def step_s(self) -> float:
        return self._step_s[False] or self._step_s[True]

    @property
    def cost_s(self) -> float:
        """Training time that one save takes: standing still, and running slower while it is uploaded."""
        beside, alone = self._step_s[True], self._step_s[False]
        slowdown = max(0.0, beside / alone - 1) if beside and alone else 0.0
        return self._blocking_s + slowdown / (1 + slowdown) * self._persist_s

    def interval_s(self, age_s: float) -> float:
        best = daly_s(self.cost_s, 1 / self.hazard.rate(age_s)) if self.cost_s else self._floor_s
        # Not below the time of an upload: saves would queue, and each would protect no earlier than before.
        return min(max(best, self._floor_s, self._persist_s), self._ceiling_s)
