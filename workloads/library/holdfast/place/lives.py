"""When interruptible capacity comes and goes, drawn from the belief about lives and the waits of a scenario."""

import math

import numpy as np

from holdfast.place.hazard import lifetimes, residuals
from holdfast.place.runs import Floats, Paths
from holdfast.place.scenarios import Waits


def gang_lives(rng: np.random.Generator, churn: Floats, *, units: int, per_path: int, settled: bool = False) -> Floats:
    """Running hours between evictions of a gang: the lost unit is replaced by a new one while the others age on.

    churn: evictions an hour of one unit, a value for each path. settled: units begin at any age instead of new.
    """
    if units == 1:
        return lifetimes(rng, churn, per_path)
    mean = per_path / units
    # A unit may be unlucky often; with too few lives it would seem to live for ever afterwards.
    each = math.ceil(mean + 4.0 * math.sqrt(mean)) + 4
    spans = lifetimes(rng, np.repeat(churn, units), each).reshape(len(churn), units, each)
    if settled:
        spans[:, :, 0] = residuals(rng, np.repeat(churn, units)).reshape(len(churn), units)
    # Events of all units in one line: the next one, of any unit, stops the gang.
    lost = np.sort(np.cumsum(spans, axis=2).reshape(len(churn), -1), axis=1)[:, :per_path]
    return np.diff(lost, axis=1, prepend=0.0)


def spot_paths(lives_h: Floats, waits_h: Floats) -> Paths:
    """Wait, run, wait, run ...; after the last life the path stays up."""
    both = np.stack([waits_h, lives_h], axis=2).reshape(len(waits_h), -1)
    # The last life has no end: what was not drawn must not look like an eviction.
    return Paths(edges_h=np.cumsum(both, axis=1)[:, :-1], starts_up=np.zeros(len(waits_h), bool))


def flex_paths(rng: np.random.Generator, count: int, *, max_run_h: float, rounds: int, waits: Waits) -> Paths:
    """Queue, run to the planned end, queue again."""
    paths = spot_paths(np.full((count, rounds), max_run_h), waits.draw(rng, count, rounds))
    return Paths(edges_h=paths.edges_h, starts_up=paths.starts_up, planned=True)
