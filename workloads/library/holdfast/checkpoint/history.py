"""What a run has lived through, carried from launch to launch inside its own checkpoints.

A resume counts as one eviction, but not from the checkpoint that a run leaves when its
loop ends in order. Whoever stops a run by a signal, to go on later, is counted: it looks the same. The time
between the last checkpoint and the eviction is not known and counts as no exposure.
"""

import math
import time
from pathlib import Path
from typing import Any, Self

from holdfast.checkpoint.interval import Hazard
from holdfast.contract.errors import InputError


def node_age_s() -> float:
    """Seconds since this machine booted, which is when a Spot VM was born."""
    try:
        # A container reads its machine's uptime here; that is wanted, since nodes are reclaimed and not pods.
        return float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return time.monotonic()


class History:
    def __init__(self, hazard: Hazard) -> None:
        self.hazard = hazard
        self._from_age_s = node_age_s()

    @classmethod
    def resumed(cls, notes: dict[str, Any]) -> Self:
        """`notes` of the restored checkpoint; empty at the start of a run."""
        hazard = Hazard.decode(notes["hazard"]) if notes else Hazard()
        # At the age of the last save, since nobody knows when after it the machine went.
        if notes and not notes.get("ended"):
            hazard.observe(notes["age_s"], notes["age_s"], evicted=True)
        return cls(hazard)

    def notes(self, *, ended: bool = False) -> dict[str, Any]:
        """Up to now, censored: this launch still runs."""
        age_s = node_age_s()
        self.hazard.observe(self._from_age_s, age_s, evicted=False)
        # Or the same time would be counted again by the next save.
        self._from_age_s = age_s
        return {"hazard": self.hazard.encode(), "age_s": age_s, "ended": ended}


def measured(metric: float | None) -> dict[str, float]:
    """What is noted of a step's metric. Raises InputError for one that ranks nothing."""
    if metric is None:
        return {}
    value = float(metric)
    if not math.isfinite(value):
        raise InputError(
            "metric of a checkpoint is no number to rank it by",
            got=str(value),
            allowed="a finite number, or None",
            fix="leave the metric away where it is not finite",
        )
    return {"metric": value}
