"""Estimates how often a Spot machine is preempted, by age: a prior, updated by measurements.

The shape over age comes from 1,442 recorded lifetimes of preemptible VMs (2019, CPU machines), the
level is a guess. Why: infra/decisions/0053.
"""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.place.scenarios import Waits
from holdfast.place.simulation_arrays import Floats, Paths
from holdfast.support.errors import InputError
from holdfast.vocabulary.machines import MACHINE_TYPES

# Age in hours from which a rate holds, and preemptions per VM-hour observed then (Kaplan-Meier,
# stops censored).
AGES_H = np.array([0.0, 0.25, 1.0, 3.0, 6.0, 12.0])
OBSERVED = np.array([0.314, 0.115, 0.052, 0.020, 0.0096, 0.0090])
EXPOSURE_H = np.array([315.0, 745.0, 1_448.0, 1_743.0, 3_016.0, 4_581.0])
SHAPE = OBSERVED / float(np.average(OBSERVED, weights=EXPOSURE_H))
"""Relative rate by age; 1 on average over the hours that were lived."""

_BANDS = [np.linspace(a, b, 8, endpoint=False) for a, b in pairwise(AGES_H)]
_GRID_H = np.concatenate([*_BANDS, AGES_H[-1:]])

PRIOR_EVENTS = 2.0
PRIOR_CHURN = {
    "nvidia-l4": 0.05,
    "nvidia-tesla-a100": 0.10,
    "nvidia-a100-80gb": 0.10,
    "nvidia-h100-80gb": 0.20,
    "nvidia-h200-141gb": 0.20,
    "nvidia-b200": 0.20,
    "nvidia-rtx-pro-6000": 0.10,
    "nvidia-tesla-t4": 0.05,
}
"""Evictions per running hour before anything was measured here. H100 zones dropped 0.09 to 0.47
requests per available hour in October 2025, an upper bound. Of up to 64 a2-highgpu-1g in us-east1-b
0.10 a node-hour were lost in 27 h of December 2021, net of those that came in the same minute: a
lower bound (github.com/uclasystem/bamboo, MIT). For L4 no public record exists. T4 is assumed to be
as easy to get as L4, RTX PRO 6000 as A100, and H200 and B200 as H100.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """The belief about one machine class: a Gamma over evictions per running hour."""

    events: float
    exposure_h: float
    measured_events: float = 0.0
    measured_h: float = 0.0
    source: str = "prior, nothing measured here"

    @property
    def per_hour(self) -> float:
        return self.events / self.exposure_h

    @property
    def basis(self) -> str:
        if not self.measured_h:
            return self.source
        return f"{self.measured_events:g} evictions in {self.measured_h:,.0f} h measured here"

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw levels as uncertain as the belief, one for each run.

        The spread of the answer then includes the uncertainty.
        """
        return rng.gamma(self.events, 1.0 / self.exposure_h, count)


def prior(accelerator: str) -> Churn:
    return Churn(events=PRIOR_EVENTS, exposure_h=PRIOR_EVENTS / PRIOR_CHURN[accelerator])


def assume(per_hour: float) -> Churn:
    """Return a churn that the caller knows, without uncertainty."""
    return Churn(
        events=1e6,
        exposure_h=1e6 / per_hour,
        source="as given",
    )


def measure(
    belief: Churn,
    *,
    events: float,
    exposure_h: float,
    ages_h: Floats,
) -> Churn:
    """Update the belief by evictions in machines that ran `exposure_h` hours in sum.

    Planned ends and stops by the platform are exposure only. ages_h: how the hours divide over the
    bands that begin at AGES_H; all 0: unknown. Machines of short jobs are always young and are
    preempted often; without ages that would count as the churn of a long job.
    """
    if exposure_h <= 0.0 or events < 0.0 or not math.isfinite(events + exposure_h):
        raise InputError(
            "measured churn",
            got=f"{events:g} evictions in {exposure_h:g} h",
            allowed="0 or more evictions in more than 0 h",
            fix="give the sum of machine hours, those without an eviction too",
        )
    weight = exposure_h
    hours = np.sum(ages_h)
    relative_rate = float(np.dot(SHAPE, ages_h) / hours) if hours > 0.0 else 0.0
    # The factor between the rate and the mean lifetime depends on the churn that is sought; a few
    # rounds settle it.
    for _ in range(8 if relative_rate else 0):
        per_hour = (belief.events + events) / (belief.exposure_h + weight)
        factors = _factor(np.array([per_hour]))
        factor = float(factors[0])
        weight = exposure_h * relative_rate * factor / per_hour
    return replace(
        belief,
        events=belief.events + events,
        exposure_h=belief.exposure_h + weight,
        measured_events=belief.measured_events + events,
        measured_h=belief.measured_h + exposure_h,
    )


def load_measurements(path: Path, accelerator: str) -> Churn:
    """Update the prior by the rows of this accelerator that `holdfast place churn --json` printed.

    Raises InputError if the file has another form.
    """
    try:
        body: dict[str, Any] = json.loads(path.read_text())
        groups = _select_groups(body["groups"], accelerator)
        ages = _ages(body["ages"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"measured churn {path}",
            got=f"{type(error).__name__}: {error}",
            allowed="what `holdfast place churn --json` prints",
            fix="write the output of that command to a file and give its path",
        ) from error
    belief = prior(accelerator)
    for events, hours in groups:
        # A machine class that was listed and never ran says nothing.
        if events or hours:
            belief = measure(belief, events=events, exposure_h=hours, ages_h=ages)
    return belief


def _select_groups(rows: list[dict[str, Any]], accelerator: str) -> list[tuple[float, float]]:
    """Return events and node-hours of the machine types with this accelerator."""
    groups: list[tuple[float, float]] = []
    for row in rows:
        machine = MACHINE_TYPES.get(row["machine_type"])
        if machine and machine.accelerator == accelerator:
            groups.append((float(row["events"]), float(row["node_hours"])))
    return groups


def _ages(bands: list[dict[str, Any]]) -> Floats:
    """Sum the hours in the bands of AGES_H; the file may have finer bands."""
    hours = np.zeros(len(AGES_H))
    for band in bands:
        from_h = float(band["from_h"])
        position = int(np.searchsorted(AGES_H, from_h, side="right"))
        hours[max(position - 1, 0)] += float(band["node_hours"])
    return hours


def lifetimes(rng: np.random.Generator, churn: Floats, per_path: int) -> Floats:
    """Draw the hours that machines live, a row for each churn.

    Young machines die sooner; the mean is 1 / churn. A lifetime is the inverse of the summed rate
    at a unit exponential.
    """
    summed = _integrate_shape()
    draws = rng.exponential(size=(len(churn), per_path))
    target = draws / _factor(churn)[:, None]
    ages = np.interp(target, summed, AGES_H)
    beyond_h = (target - summed[-1]) / SHAPE[-1]
    return np.where(target > summed[-1], AGES_H[-1] + beyond_h, ages)


def residuals(rng: np.random.Generator, churn: Floats) -> Floats:
    """Draw the remaining hours of machines that are observed at a random moment.

    Their density follows the survival function, so that long lives weigh more.
    """
    factor = _factor(churn)[:, None]
    integrated_shape = np.interp(_GRID_H, AGES_H, _integrate_shape())
    alive = np.exp(-factor * integrated_shape)
    widths = np.diff(_GRID_H)
    mean_alive = (alive[:, 1:] + alive[:, :-1]) / 2.0
    body = np.cumsum(mean_alive * widths, axis=1)
    # From the last band on the rate is constant, so what is left there has no memory.
    old_rate = factor * SHAPE[-1]
    tail = alive[:, -1:] / old_rate
    count = len(churn)
    share = rng.random((count, 1)) * (body[:, -1:] + tail)
    cell = np.minimum((body < share).sum(axis=1), len(_GRID_H) - 2)
    # The grid ends where the last band begins.
    old = _GRID_H[-1] + rng.exponential(size=count) / old_rate[:, 0]
    young = _GRID_H[cell] + rng.random(count) * widths[cell]
    return np.where(share[:, 0] > body[:, -1], old, young)


def _integrate_shape() -> Floats:
    """Return the integral of SHAPE up to each age of AGES_H."""
    pieces = SHAPE[:-1] * np.diff(AGES_H)
    return np.concatenate([[0.0], np.cumsum(pieces)])


def _factor(churn: Floats) -> Floats:
    """Return the factor of SHAPE with which the mean life is 1 / churn."""
    rates, factors = _factors()
    return np.exp(np.interp(np.log(churn), rates, factors))


@cache
def _factors() -> tuple[Floats, Floats]:
    factors = np.logspace(-6, 5, 400)
    return np.log(1.0 / _mean_life(factors)), np.log(factors)


def _mean_life(factor: Floats) -> Floats:
    """Integrate the survival function piece by piece."""
    rates = SHAPE[None, :] * factor[:, None]
    count = len(factor)
    pieces = rates[:, :-1] * np.diff(AGES_H)
    sums = np.cumsum(pieces, axis=1)
    summed = np.hstack([np.zeros((count, 1)), sums])
    dying = np.hstack([-np.expm1(-pieces), np.ones((count, 1))])
    return np.sum(np.exp(-summed) * dying / rates, axis=1)


def gang_lives(
    rng: np.random.Generator,
    churn: Floats,
    *,
    units: int,
    per_path: int,
    settled: bool = False,
) -> Floats:
    """Draw the running hours between evictions of a gang.

    The lost unit is replaced by a new one while the others age on. churn: evictions an hour of one
    unit, a value for each path. settled: units begin at any age instead of new.
    """
    if units == 1:
        return lifetimes(rng, churn, per_path)
    paths = len(churn)
    unit_churn = np.repeat(churn, units)
    mean = per_path / units
    # A unit may be unlucky often; with too few lives it would seem to live forever afterwards.
    lives = math.ceil(mean + 4.0 * math.sqrt(mean)) + 4
    spans = lifetimes(rng, unit_churn, lives).reshape(paths, units, lives)
    if settled:
        spans[:, :, 0] = residuals(rng, unit_churn).reshape(paths, units)
    # Events of all units in one line: the next one, of any unit, stops the gang.
    events = np.cumsum(spans, axis=2).reshape(paths, -1)
    losses = np.sort(events, axis=1)[:, :per_path]
    return np.diff(losses, axis=1, prepend=0.0)


def spot_paths(lives_h: Floats, waits_h: Floats) -> Paths:
    """Return paths that wait, run, wait, run ...; after the last life the path stays up."""
    spells = np.stack([waits_h, lives_h], axis=2).reshape(len(waits_h), -1)
    # The last life has no end: what was not drawn must not look like an eviction.
    edges_h = np.cumsum(spells, axis=1)[:, :-1]
    return Paths(edges_h=edges_h, starts_up=np.zeros(len(waits_h), bool))


def flex_paths(
    rng: np.random.Generator,
    count: int,
    *,
    max_run_h: float,
    rounds: int,
    waits: Waits,
) -> Paths:
    """Return paths that queue, run to the planned end, and queue again."""
    lives_h = np.full((count, rounds), max_run_h)
    paths = spot_paths(lives_h, waits.draw(rng, count, rounds))
    return Paths(edges_h=paths.edges_h, starts_up=paths.starts_up, planned=True)
