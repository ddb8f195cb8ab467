"""Schedules of saves: every N steps, every N seconds, or at the interval that loses least.

The interval follows Young 1974 and Daly 2006, from the measured cost of a save and the measured
hazard: events over exposure, where time without an event counts too (censored), so that a quiet run
saves less often. Until an event or some hours have been observed, saves follow each other as long
as that costs less than 2 % of the time.
"""

# Why it is so: infra/decisions/0194, infra/decisions/0199.

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.settings import MIN_SHARD_BYTES
from holdfast.checkpoint.settings import Cadence as Setting
from holdfast.vocabulary.checkpoint_interval import find_best_interval


class EverySteps:
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def due(self, step: int) -> bool:
        return step % self._steps == 0

    def record_save(self, step: int) -> None:
        pass


class EverySeconds:
    """Saves when `interval_s` has passed. The coordinator calls `interval_s` at each planned step,
    so the interval may change as measurements come.
    """

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
        self._started_at = clock()
        # A launch without a save yet counts from its start, or the first planned step would save at
        # once.
        self._last_save = clock()
        self._planned_step = step + 2  # the first step compiles and warms up

    def due(self, step: int) -> bool:
        if step < self._planned_step:
            return False
        is_due, self._planned_step = self._ranks.agree(None, lambda _: self._plan(step))
        return bool(is_due)

    def record_save(self, step: int) -> None:
        self._last_save = self._clock()

    def _plan(self, step: int) -> tuple[bool, int]:
        """Returns whether a save is due, and the step at which to plan again."""
        now = self._clock()
        steps = step - self._first_step
        # An average over the whole launch, saves included: time on the clock passes in both.
        step_s = (now - self._started_at) / steps
        remaining_s = self._last_save + self._interval_s() - now
        is_due = remaining_s < step_s / 2
        ahead_s = self._interval_s() if is_due else remaining_s
        # An early estimate of the step time is a bad one: look again before trusting it for long.
        steps_ahead = min(int(ahead_s / step_s), steps)
        return is_due, step + max(1, steps_ahead)


def make_cadence(
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
# Assumed before anything is observed, with the weight of one event: one eviction in six hours.
PRIOR_EVENTS = 1.0
PRIOR_EXPOSURE_S = 6 * HOUR_S
# Share of the training time that saves may cost while only the prior tells the eviction rate.
UNKNOWN_CHURN_COST = 0.02
_SMOOTHING = 0.1


@dataclass(kw_only=True)
class Hazard:
    """The rate of evictions of the whole job. In a gang, the end of any node is one event."""

    events: float = 0.0
    exposure_s: float = 0.0
    _counted_to: float = field(default_factory=time.monotonic, compare=False)

    @property
    def rate(self) -> float:
        """Evictions per second: the observed rate, shrunk towards the prior."""
        # With the prior the rate is never zero: a run without an eviction yet must not stop saving.
        return (self.events + PRIOR_EVENTS) / (self.exposure_s + PRIOR_EXPOSURE_S)

    @property
    def is_measured(self) -> bool:
        """True if observations weigh more than the prior."""
        return self.events > 0 or self.exposure_s > PRIOR_EXPOSURE_S

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> Self:
        """Reads the notes of the restored checkpoint, which are empty at the start of a run.

        A restart after a run that had not ended counts as an eviction.
        """
        if not notes:
            return cls()
        # Lists: an older release had one number for each band of node age.
        counts = notes["hazard"]
        return cls(
            events=sum(counts["events"]) + (not notes.get("ended")),
            exposure_s=sum(counts["exposure_s"]),
        )

    def notes(self, *, is_complete: bool = False) -> dict[str, Any]:
        """Returns the counts up to now, censored, since this launch still runs."""
        now = time.monotonic()
        self.exposure_s += now - self._counted_to
        # Otherwise the next save would count the same time again.
        self._counted_to = now
        return {
            "hazard": {
                "events": [self.events],
                "exposure_s": [self.exposure_s],
            },
            "ended": is_complete,
        }


class SaveCostModel:
    """Measures the cost of saves while the job runs, and computes the interval between them."""

    def __init__(
        self,
        hazard: Hazard,
        *,
        floor_s: float,
        ceiling_s: float,
    ) -> None:
        self.hazard = hazard
        self._floor_s = floor_s
        self._ceiling_s = ceiling_s
        self.blocking_s = 0.0
        """Time that the newest save held training."""
        self.persist_s = 0.0
        """Time from the start of the newest save until it was durable; excludes its part for bytes
        that a run stores once.
        """
        self.repeated_bytes = 0
        """Bytes that each save writes; less than the state if parameters are frozen."""
        self._large_bytes = 0
        """Bytes that the newest large save of this rank wrote, which may include what is stored
        once.
        """
        self._large_save_s = 0.0
        self._step_s = {True: 0.0, False: 0.0}
        """Smoothed step time during an upload (True) and without one."""

    def observe_save(self, seconds: float, written_bytes: int, once_bytes: int) -> None:
        """Learns from a save that is durable.

        The next one will not write `once_bytes` again: frozen parameters, which a run stores once.
        """
        self.repeated_bytes = written_bytes - once_bytes
        self.persist_s = seconds
        if once_bytes:
            self.persist_s = seconds * self.repeated_bytes / written_bytes
        # A save of a few bytes takes as long as its requests, and says nothing about many bytes.
        if 2 * written_bytes >= self._large_bytes:
            self._large_bytes = written_bytes
            self._large_save_s = seconds

    def estimate_s(self, written_bytes: int) -> float:
        """Returns how long this rank alone takes to store `written_bytes`; 0 before its first save.

        A save that writes the once-stored bytes again takes longer than `persist_s`.
        """
        if not self._large_bytes:
            return 0.0
        # A smaller save takes as long as its request. A rank may have few bytes, since tensors stay
        # whole.
        saved_bytes = max(self._large_bytes, MIN_SHARD_BYTES)
        return self._large_save_s * max(written_bytes, MIN_SHARD_BYTES) / saved_bytes

    def observe_step(self, seconds: float, *, uploading: bool) -> None:
        average = self._step_s[uploading]
        if not average:
            self._step_s[uploading] = seconds
        else:
            self._step_s[uploading] = average + _SMOOTHING * (seconds - average)

    @property
    def step_s(self) -> float:
        return self._step_s[False] or self._step_s[True]

    @property
    def cost_s(self) -> float:
        """Training time that one save takes: it holds training, and its upload slows steps down."""
        uploading_s = self._step_s[True]
        undisturbed_s = self._step_s[False]
        slowdown = 0.0
        if uploading_s and undisturbed_s:
            slowdown = max(0.0, uploading_s / undisturbed_s - 1)
        return self.blocking_s + slowdown / (1 + slowdown) * self.persist_s

    def interval_s(self) -> float:
        best_s = (
            find_best_interval(self.cost_s, 1 / self.hazard.rate) if self.cost_s else self._floor_s
        )
        if not self.hazard.is_measured:
            best_s = min(best_s, self.cost_s / UNKNOWN_CHURN_COST)
        # Not below the time of an upload: saves would queue, and none would be durable any earlier.
        return min(max(best_s, self._floor_s, self.persist_s), self._ceiling_s)
