"""How likely a Spot machine is taken away, by age: a prior, replaced by what was measured here.

The prior is a guess with an honest width: the shape over age comes from 1,442 recorded
lifetimes of preemptible VMs (2019, CPU machines), the level from how often GPU zones dropped requests, which
bounds it from above. Twenty measured evictions weigh ten times as much as it does.
"""

# Why it is so: infra/decisions/0053.

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast.contract.errors import InputError
from infra.contract.capacity import ChurnRow
from infra.placement.runs import Floats, Paths

# Age in hours from which a rate holds, and preemptions per VM-hour observed then (Kaplan-Meier, stops censored).
AGES_H = np.array([0.0, 0.25, 1.0, 3.0, 6.0, 12.0])
OBSERVED = np.array([0.314, 0.115, 0.052, 0.020, 0.0096, 0.0090])
EXPOSURE_H = np.array([315.0, 745.0, 1_448.0, 1_743.0, 3_016.0, 4_581.0])
SHAPE = OBSERVED / float(np.average(OBSERVED, weights=EXPOSURE_H))
"""Relative rate by age; 1 on average over the hours that were lived."""

PRIOR_EVENTS = 2.0
PRIOR_CHURN = {
    "nvidia-l4": 0.05,
    "nvidia-tesla-a100": 0.10,
    "nvidia-a100-80gb": 0.10,
    "nvidia-h100-80gb": 0.20,
}
"""Evictions per running hour before anything was measured here. H100 zones dropped 0.09 to 0.47 requests per
available hour in October 2025, an upper bound; for L4 and A100 no public record exists."""

OUTAGE_H = (0.25, 0.08)
"""Mean and median wait for the next Spot machine; from the better half of the same H100 zones."""
FLEX_WAIT_H = (1.5, 0.5)
"""Mean and median wait in the flex-start queue. An assumption: Google gives no estimate."""


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
    return Churn(events=1e6, exposure_h=1e6 / per_hour, source="as given")


def recorded(per_hour: float) -> Churn:
    return Churn(
        events=1e6, exposure_h=1e6 / per_hour, source="outages an available hour of the traces, an upper bound"
    )


def measure(belief: Churn, *, events: float, exposure_h: float) -> Churn:
    """Evictions seen while machines ran `exposure_h` in sum. Planned ends and our own stops are exposure only."""
    if exposure_h <= 0.0 or events < 0.0 or not math.isfinite(events + exposure_h):
        raise InputError(
            "measured churn",
            got=f"{events:g} evictions in {exposure_h:g} h",
            allowed="0 or more evictions in more than 0 h",
            fix="give the sum of machine hours, those without an eviction too",
        )
    return Churn(
        events=belief.events + events,
        exposure_h=belief.exposure_h + exposure_h,
        measured_events=belief.measured_events + events,
        measured_h=belief.measured_h + exposure_h,
    )


def read_measured(path: Path, accelerator: str) -> Churn:
    """Prior plus every row of this accelerator that the ledger measured."""
    try:
        rows: list[ChurnRow] = json.loads(path.read_text())["churn"]
        ours = [(float(r["events"]), float(r["hours"])) for r in rows if r["accelerator"] == accelerator]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"measured churn {path}",
            got=f"{type(error).__name__}: {error}",
            allowed='{"churn": [{"accelerator": ..., "events": ..., "hours": ...}, ...]}',
            fix="write one row a machine class, as infra.contract.capacity.ChurnRow says",
        ) from error
    belief = prior(accelerator)
    for events, hours in ours:
        belief = measure(belief, events=events, exposure_h=hours)
    return belief


def lifetimes(rng: np.random.Generator, churn: Floats, per_path: int) -> Floats:
    """Hours that machines live, a row for each churn: young ones die sooner, the mean is 1 / churn.

    The inverse of the summed hazard at a unit exponential.
    """
    summed = np.concatenate([[0.0], np.cumsum(SHAPE[:-1] * np.diff(AGES_H))])
    target = rng.exponential(size=(len(churn), per_path)) / _factor(churn)[:, None]
    ages = np.interp(target, summed, AGES_H)
    return np.where(target > summed[-1], AGES_H[-1] + (target - summed[-1]) / SHAPE[-1], ages)


def rate_at(churn: float, age_h: float) -> float:
    """The hazard of a machine of this age, where the class loses `churn` machines a running hour."""
    step = int(np.searchsorted(AGES_H, age_h, side="right")) - 1
    return float(SHAPE[step] * _factor(np.array([churn]))[0])


def _factor(churn: Floats) -> Floats:
    """What multiplies SHAPE so that the mean life is 1 / churn."""
    factors = np.logspace(-6, 5, 400)
    return np.exp(np.interp(np.log(churn), np.log(1.0 / _mean_life(factors)), np.log(factors)))


def _mean_life(factor: Floats) -> Floats:
    """The survival function, integrated piece by piece."""
    rates = SHAPE[None, :] * factor[:, None]
    summed = np.concatenate([np.zeros((len(factor), 1)), np.cumsum(rates[:, :-1] * np.diff(AGES_H), axis=1)], axis=1)
    gone = np.concatenate([-np.expm1(-rates[:, :-1] * np.diff(AGES_H)), np.ones((len(factor), 1))], axis=1)
    return np.sum(np.exp(-summed) * gone / rates, axis=1)


def spot_paths(rng: np.random.Generator, churn: Floats, *, per_path: int, outage_h: tuple[float, float]) -> Paths:
    """Wait, live, wait, live ...; after the last life the path stays up."""
    waits = _waits(rng, outage_h, (len(churn), per_path))
    return _alternate(waits, lifetimes(rng, churn, per_path))


def flex_paths(
    rng: np.random.Generator, count: int, *, max_run_h: float, rounds: int, wait_h: tuple[float, float]
) -> Paths:
    """Queue, run to the planned end, queue again."""
    paths = _alternate(_waits(rng, wait_h, (count, rounds)), np.full((count, rounds), max_run_h))
    return Paths(edges_h=paths.edges_h, starts_up=paths.starts_up, planned=True)


def _waits(rng: np.random.Generator, mean_median: tuple[float, float], shape: tuple[int, int]) -> Floats:
    mean, median = mean_median
    return rng.lognormal(math.log(median), math.sqrt(2.0 * math.log(mean / median)), shape)


def _alternate(waits: Floats, lifetimes_h: Floats) -> Paths:
    spells = np.stack([waits, lifetimes_h], axis=2).reshape(len(waits), -1)
    return Paths(edges_h=np.cumsum(spells, axis=1)[:, :-1], starts_up=np.zeros(len(waits), bool))
