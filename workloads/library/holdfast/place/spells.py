"""When interruptible capacity comes and goes, drawn from what is believed of lifetimes and waits."""

import math

import numpy as np

from holdfast.place.hazard import lifetimes, residuals
from holdfast.place.outages import Outages
from holdfast.place.runs import Floats, Paths


def spot_paths(
    rng: np.random.Generator,
    churn: Floats,
    *,
    units: int,
    per_path: int,
    outages: Outages,
    settled: bool = False,
    first_wait: float = 1.0,
) -> Paths:
    """Wait, run, wait, run ...; after the last spell the path stays up.

    churn: evictions an hour of one unit, a value for each path; `units` are lost independently of each other.
    settled: units begin at any age instead of new. first_wait: multiplies the wait before the first start.
    """
    waits = outages.draw(rng, len(churn), per_path)
    # A shortened job still waits once for its first machines; the answer is multiplied afterwards.
    waits[:, 0] *= first_wait
    return _alternate(waits, gang_spells(rng, churn, units=units, per_path=per_path, settled=settled))


def gang_spells(rng: np.random.Generator, churn: Floats, *, units: int, per_path: int, settled: bool = False) -> Floats:
    """Running hours between evictions of a gang, whose lost unit is replaced by a new one while the others age on."""
    if units == 1:
        return lifetimes(rng, churn, per_path)
    mean = per_path / units
    # A unit may be unlucky often; with too few lifetimes it would seem to live for ever afterwards.
    each = math.ceil(mean + 4.0 * math.sqrt(mean)) + 4
    spans = lifetimes(rng, np.repeat(churn, units), each).reshape(len(churn), units, each)
    if settled:
        spans[:, :, 0] = residuals(rng, np.repeat(churn, units)).reshape(len(churn), units)
    # Events of all units in one line: whichever is lost stops the gang.
    lost = np.sort(np.cumsum(spans, axis=2).reshape(len(churn), -1), axis=1)[:, :per_path]
    return np.diff(lost, axis=1, prepend=0.0)


def flex_paths(rng: np.random.Generator, count: int, *, max_run_h: float, rounds: int, waits: Outages) -> Paths:
    """Queue, run to the planned end, queue again."""
    paths = _alternate(waits.draw(rng, count, rounds), np.full((count, rounds), max_run_h))
    return Paths(edges_h=paths.edges_h, starts_up=paths.starts_up, planned=True)


def _alternate(waits: Floats, runs_h: Floats) -> Paths:
    spells = np.stack([waits, runs_h], axis=2).reshape(len(waits), -1)
    # The last spell has no end: what was not drawn must not look like an eviction.
    return Paths(edges_h=np.cumsum(spells, axis=1)[:, :-1], starts_up=np.zeros(len(waits), bool))
