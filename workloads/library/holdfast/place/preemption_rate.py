"""How likely a Spot machine is preempted, by age: a prior, replaced by what was measured here. Why:
infra/decisions/0053.

The shape over age comes from 1,442 recorded lifetimes of preemptible VMs (2019, CPU machines), the
level is a guess.
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

_GRID_H = np.concatenate(
    [np.linspace(a, b, 8, endpoint=False) for a, b in pairwise(AGES_H)] + [AGES_H[-1:]]
)

PRIOR_EVENTS = 2.0
PRIOR_CHURN = {
    "nvidia-l4": 0.05,
    "nvidia-tesla-a100": 0.10,
    "nvidia-a100-80gb": 0.10,
    "nvidia-h100-80gb": 0.20,
    "nvidia-h200-141gb": 0.20,
    "nvidia-b200": 0.20,
}
"""Evictions per running hour before anything was measured here. H100 zones dropped 0.09 to 0.47
requests per available hour in October 2025, an upper bound. Of up to 64 a2-highgpu-1g in us-east1-b
0.10 a node-hour were lost in 27 h of December 2021, net of those that came in the same minute: a
lower bound (github.com/uclasystem/bamboo, MIT). For L4 no public record exists; H200 and B200 are
assumed to be as scarce as H100.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """What is believed of one machine class: a Gamma over evictions per running hour."""

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
        """Levels as uncertain as the belief; one a run, so that the answer's spread includes it."""
        return rng.gamma(self.events, 1.0 / self.exposure_h, count)


def prior(accelerator: str) -> Churn:
    return Churn(events=PRIOR_EVENTS, exposure_h=PRIOR_EVENTS / PRIOR_CHURN[accelerator])


def fixed(per_hour: float) -> Churn:
    """A churn that the caller knows; no uncertainty left."""
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
    """Evictions seen while machines ran `exposure_h` in sum. Planned ends and stops by the platform
    are exposure only.

    ages_h: how the hours divide over the bands that begin at AGES_H. Machines of short jobs are
    always young and are preempted often; without ages that would count as the churn of a long job.
    All 0: unknown.
    """
    if exposure_h <= 0.0 or events < 0.0 or not math.isfinite(events + exposure_h):
        raise InputError(
            "measured churn",
            got=f"{events:g} evictions in {exposure_h:g} h",
            allowed="0 or more evictions in more than 0 h",
            fix="give the sum of machine hours, those without an eviction too",
        )
    weight = exposure_h
    young = float(np.dot(SHAPE, ages_h) / np.sum(ages_h)) if np.sum(ages_h) > 0.0 else 0.0
    # The factor between hazard and mean lifetime depends on the churn that is sought; a few rounds
    # settle it.
    for _ in range(8 if young else 0):
        per_hour = (belief.events + events) / (belief.exposure_h + weight)
        weight = exposure_h * young * float(_factor(np.array([per_hour]))[0]) / per_hour
    return replace(
        belief,
        events=belief.events + events,
        exposure_h=belief.exposure_h + weight,
        measured_events=belief.measured_events + events,
        measured_h=belief.measured_h + exposure_h,
    )


def read_measured(path: Path, accelerator: str) -> Churn:
    """The prior, and every row of this accelerator that `holdfast churn --json` printed."""
    try:
        body: dict[str, Any] = json.loads(path.read_text())
        ours = [
            (float(row["events"]), float(row["node_hours"]))
            for row in body["groups"]
            if (machine := MACHINE_TYPES.get(row["machine_type"]))
            and machine.accelerator == accelerator
        ]
        ages = _ages(body["ages"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"measured churn {path}",
            got=f"{type(error).__name__}: {error}",
            allowed="what `holdfast churn --json` prints",
            fix="write the output of that command to a file and give its path",
        ) from error
    belief = prior(accelerator)
    for events, hours in ours:
        # A machine class that was listed and never ran says nothing.
        if events or hours:
            belief = measure(
                belief,
                events=events,
                exposure_h=hours,
                ages_h=ages,
            )
        else:
            belief = belief
    return belief


def _ages(bands: list[dict[str, Any]]) -> Floats:
    """Hours in the bands of AGES_H, whatever finer bands the file has."""
    hours = np.zeros(len(AGES_H))
    for band in bands:
        at = max(int(np.searchsorted(AGES_H, float(band["from_h"]), side="right")) - 1, 0)
        hours[at] += float(band["node_hours"])
    return hours


def lifetimes(rng: np.random.Generator, churn: Floats, per_path: int) -> Floats:
    """Hours that machines live, a row for each churn: young ones die sooner, the mean is 1 / churn.

    The inverse of the summed hazard at a unit exponential.
    """
    summed = np.concatenate([[0.0], np.cumsum(SHAPE[:-1] * np.diff(AGES_H))])
    target = rng.exponential(size=(len(churn), per_path)) / _factor(churn)[:, None]
    ages = np.interp(target, summed, AGES_H)
    return np.where(target > summed[-1], AGES_H[-1] + (target - summed[-1]) / SHAPE[-1], ages)


def residuals(rng: np.random.Generator, churn: Floats) -> Floats:
    """Hours that a machine met at any moment still lives: spread as its survival function, so long
    lives weigh more.
    """
    factor = _factor(churn)[:, None]
    summed = np.concatenate([[0.0], np.cumsum(SHAPE[:-1] * np.diff(AGES_H))])
    alive = np.exp(-factor * np.interp(_GRID_H, AGES_H, summed))
    body = np.cumsum((alive[:, 1:] + alive[:, :-1]) / 2.0 * np.diff(_GRID_H), axis=1)
    # From the last band on the rate is constant, so what is left there has no memory.
    tail = alive[:, -1:] / (factor * SHAPE[-1])
    share = rng.random((len(churn), 1)) * (body[:, -1:] + tail)
    at = np.minimum((body < share).sum(axis=1), len(_GRID_H) - 2)
    # The grid ends where the last band begins.
    old = _GRID_H[-1] + rng.exponential(size=len(churn)) / (factor[:, 0] * SHAPE[-1])
    return np.where(
        share[:, 0] > body[:, -1], old, _GRID_H[at] + rng.random(len(churn)) * np.diff(_GRID_H)[at]
    )


def _factor(churn: Floats) -> Floats:
    """What multiplies SHAPE so that the mean life is 1 / churn."""
    rates, factors = _factors()
    return np.exp(np.interp(np.log(churn), rates, factors))


@cache
def _factors() -> tuple[Floats, Floats]:
    factors = np.logspace(-6, 5, 400)
    return np.log(1.0 / _mean_life(factors)), np.log(factors)


def _mean_life(factor: Floats) -> Floats:
    """The survival function, integrated piece by piece."""
    rates = SHAPE[None, :] * factor[:, None]
    summed = np.concatenate(
        [np.zeros((len(factor), 1)), np.cumsum(rates[:, :-1] * np.diff(AGES_H), axis=1)], axis=1
    )
    gone = np.concatenate(
        [-np.expm1(-rates[:, :-1] * np.diff(AGES_H)), np.ones((len(factor), 1))], axis=1
    )
    return np.sum(np.exp(-summed) * gone / rates, axis=1)


def gang_lives(
    rng: np.random.Generator,
    churn: Floats,
    *,
    units: int,
    per_path: int,
    settled: bool = False,
) -> Floats:
    """Running hours between evictions of a gang: the lost unit is replaced by a new one while the
    others age on.

    churn: evictions an hour of one unit, a value for each path. settled: units begin at any age
    instead of new.
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


def flex_paths(
    rng: np.random.Generator,
    count: int,
    *,
    max_run_h: float,
    rounds: int,
    waits: Waits,
) -> Paths:
    """Queue, run to the planned end, queue again."""
    paths = spot_paths(np.full((count, rounds), max_run_h), waits.draw(rng, count, rounds))
    return Paths(
        edges_h=paths.edges_h,
        starts_up=paths.starts_up,
        planned=True,
    )
