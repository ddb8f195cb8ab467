"""Forecasts when a running job will be done and for how much, each as an interval.

An interval holds four times in five. The rest of the job is simulated many times: it runs at its
own pace, is interrupted as often as jobs of its size have been here, and loses each time what they
lost. What was not measured yet comes from the platform's record, which weighs as much as two
interruptions.
"""

# Why it is so: infra/decisions/0147.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.place.preemption_rate import PRIOR_EVENTS
from holdfast.place.scenarios import Waits
from holdfast.place.simulation_arrays import Bools, Floats

SHARE = 0.8
"""Share of the intervals that hold."""
DRAWS = 4_000
FEWEST_DRAWS = 500
MOST_LANES = 64
MOST_INTERRUPTIONS = 10_000
PRIOR_RESTART_H = 5 / 60
NEVER_PER_HOUR = 1e-9
RATE_CHANGES = 0.6
"""Probability that the rate is another one after an interruption."""
TAILS = np.array([3.0, 5.0, 10.0, 1_000.0])
"""Shapes of the law of lives: small ones have a heavy tail, with some long lives and many short
ones; the last has none.
"""


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Cost:
    """The hours that one interruption cost."""

    wait_h: float
    """Wait without a machine, which is not billed."""
    restart_h: float
    lost_h: float
    """Work that is done again."""


@dataclass(frozen=True, slots=True)
class Life:
    """The time for which an attempt worked."""

    hours: float
    interrupted: bool
    """False: it completed, or it is still alive."""


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Outlook:
    """Everything that is known of the rest of a job."""

    left_h: float
    """Work from now on, if nothing interrupts it."""
    spread: float
    """Relative standard error of `left_h`."""
    save_every_h: float
    prior_per_hour: float
    """Interruptions of the whole job an hour, by the platform's record; 0: none is expected."""
    waits: Waits | None
    """Waits for a machine by the platform's record; None: it comes at once."""
    lives: Sequence[Life] = ()
    """Attempts of this job and of jobs like it in this cluster."""
    age_h: float = 0.0
    """Hours since the first step of the present attempt."""
    costs: Sequence[Cost] = field(default_factory=tuple[Cost, ...])
    """Costs of interruptions that were seen here."""
    down_for_h: float | None = None
    """Hours since it was interrupted, if it has not continued yet."""
    ends_in_h: float = math.inf
    """Hours until the planned end of its present machines."""
    runs_for_h: float = math.inf
    """Planned life of the machines that follow."""
    lanes: int = 1
    """Machines that share the work and are interrupted one by one; `left_h` is the work of each."""


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Forecast:
    """80 % intervals and medians, from now on."""

    hours: tuple[float, float]
    median_h: float
    paid_hours: tuple[float, float]
    """Hours on machines, which are billed."""
    median_paid_h: float
    undisturbed: float
    """Probability that nothing interrupts it any more. Above 80 %, its intervals hold with this
    probability.
    """


def forecast(outlook: Outlook, *, draws: int = DRAWS) -> Forecast:
    """Simulate the rest of the job `draws` times; the same job has the same forecast."""
    rng = np.random.default_rng(0)
    lanes = min(outlook.lanes, MOST_LANES)
    hours, paid_h, undisturbed = _simulate(
        outlook,
        rng,
        max(FEWEST_DRAWS, draws // lanes),
        lanes,
    )
    return Forecast(
        hours=shortest_interval(hours),
        median_h=float(np.median(hours)),
        paid_hours=shortest_interval(paid_h),
        median_paid_h=float(np.median(paid_h)),
        undisturbed=undisturbed,
    )


def shortest_interval(values: Floats, share: float = SHARE) -> tuple[float, float]:
    """Return the shortest interval that holds this share of the values.

    Not the one between two quantiles: a job that is probably not interrupted any more ends at the
    earliest moment, which such an interval would cut off or hold too often.
    """
    ordered = np.sort(values)
    count = int(np.ceil(share * len(ordered)))
    lows = ordered[: len(ordered) - count + 1]
    highs = ordered[count - 1 :]
    shortest = int(np.argmin(highs - lows))
    return float(lows[shortest]), float(highs[shortest])


@dataclass(frozen=True, slots=True)
class _Costs:
    wait_h: Floats
    restart_h: Floats
    lost_h: Floats


@dataclass(slots=True)
class _Rest:
    """The work that is left and the hours so far, in each lane of each draw."""

    left_h: Floats
    hours: Floats
    paid_h: Floats
    running: Bools

    def restart(self, cost: _Costs) -> None:
        """Count the rest of an interruption that all lanes are in."""
        self.hours += cost.wait_h + cost.restart_h
        self.paid_h += cost.restart_h
        self.left_h += cost.lost_h

    def end_in(self, life_h: Floats) -> Bools:
        """Complete the lanes whose machines live long enough. Returns which these are."""
        ends = self.running & (life_h >= self.left_h)
        self.hours[ends] += self.left_h[ends]
        self.paid_h[ends] += self.left_h[ends]
        self.running &= ~ends
        return ends

    def interrupt(self, life_h: Floats, cost: _Costs, save_every_h: float) -> None:
        """Count the life of the machines of all other lanes, and the interruption that ends it."""
        self.hours += self.running * (life_h + cost.wait_h + cost.restart_h)
        self.paid_h += self.running * (life_h + cost.restart_h)
        # A loss goes back at most one save interval beyond the start of this life.
        lost_h = np.minimum(cost.lost_h, life_h + save_every_h)
        self.left_h = np.where(self.running, self.left_h - life_h + lost_h, self.left_h)


def _simulate(
    outlook: Outlook,
    rng: np.random.Generator,
    count: int,
    lanes: int,
) -> tuple[Floats, Floats, float]:
    """Return hours until the end, and those on machines, of each draw; and the share of draws
    without an interruption.

    Lanes take work from one queue: all of them end about when the mean of them does. The pace and
    the law of lives are the same for all lanes of a draw.
    """
    draws = count * lanes
    factor = np.exp(outlook.spread * rng.standard_normal(count))
    left_h = np.full(draws, outlook.left_h) * np.repeat(factor, lanes)
    tails, scales_h = _draw_life_laws(
        outlook,
        rng,
        count,
    )
    tail = np.repeat(tails, lanes)
    scale_h = np.repeat(scales_h, lanes)
    age_h = outlook.age_h if outlook.down_for_h is None else 0.0
    per_hour = _draw_rates(
        rng,
        tail,
        scale_h + age_h,
    )
    rest = _Rest(left_h, np.zeros(draws), np.zeros(draws), np.ones(draws, bool))
    if outlook.down_for_h is not None:
        rest.restart(_draw_present_costs(outlook, rng, draws, outlook.down_for_h))
    planned_h = outlook.ends_in_h if outlook.down_for_h is None else outlook.runs_for_h
    undisturbed = 0.0
    for number in range(MOST_INTERRUPTIONS):
        life_h = np.minimum(rng.exponential(1.0 / per_hour), planned_h)
        planned_h = outlook.runs_for_h
        changed = rng.random(draws) < RATE_CHANGES
        per_hour = np.where(
            changed,
            _draw_rates(
                rng,
                tail,
                scale_h,
            ),
            per_hour,
        )
        ends = rest.end_in(life_h)
        if not number and outlook.down_for_h is None:
            all_lanes_end = ends.reshape(count, lanes).all(axis=1)
            undisturbed = float(all_lanes_end.mean())
        if not rest.running.any():
            break
        rest.interrupt(life_h, _draw_costs(outlook, rng, draws), outlook.save_every_h)
    mean_h = rest.hours.reshape(count, lanes).mean(axis=1)
    mean_paid_h = rest.paid_h.reshape(count, lanes).mean(axis=1)
    return mean_h, mean_paid_h, undisturbed


def _draw_rates(
    rng: np.random.Generator,
    tail: Floats,
    scale_h: Floats,
) -> Floats:
    """Draw interruptions an hour, with which lives follow a Lomax law of this tail and scale.

    An attempt of some age has such a rate too, with its age added to the scale.
    """
    return np.maximum(rng.gamma(tail, 1.0 / scale_h), NEVER_PER_HOUR)


def _draw_life_laws(
    outlook: Outlook,
    rng: np.random.Generator,
    draws: int,
) -> tuple[Floats, Floats]:
    """Draw tails and scales of the law of lives, weighted by how well they fit the seen lives.

    The record counts as PRIOR_EVENTS more lives, of its mean.
    """
    count = sum(life.interrupted for life in outlook.lives)
    if not outlook.prior_per_hour and not count:
        tail = np.full(draws, TAILS[-1])
        return tail, tail / NEVER_PER_HOUR
    total_h = sum(life.hours for life in outlook.lives)
    mean_h = total_h / max(count, 1)
    if outlook.prior_per_hour:
        prior_total_h = PRIOR_EVENTS / outlook.prior_per_hour
        mean_h = (total_h + prior_total_h) / (count + PRIOR_EVENTS)
    means_h = mean_h * np.geomspace(
        1 / 8,
        8,
        49,
    )
    tails, means = np.meshgrid(
        TAILS,
        means_h,
        indexing="ij",
    )
    tails = tails.ravel()
    scales_h = means.ravel() * tails
    likelihood = np.zeros(len(tails))
    for life in outlook.lives:
        likelihood += _log_likelihood(
            life,
            tails,
            scales_h,
        )
    if outlook.prior_per_hour:
        prior_life = Life(1.0 / outlook.prior_per_hour, interrupted=True)
        likelihood += PRIOR_EVENTS * _log_likelihood(
            prior_life,
            tails,
            scales_h,
        )
    weights = np.exp(likelihood - likelihood.max())
    rows = rng.choice(
        len(tails),
        size=draws,
        p=weights / weights.sum(),
    )
    return tails[rows], scales_h[rows]


def _log_likelihood(
    life: Life,
    tails: Floats,
    scales_h: Floats,
) -> Floats:
    """Return the logarithm of how likely each law makes a life."""
    growth = np.log1p(life.hours / scales_h)
    survival = -tails * growth
    if not life.interrupted:
        return survival
    return survival + np.log(tails / scales_h) - growth


def _draw_costs(
    outlook: Outlook,
    rng: np.random.Generator,
    draws: int,
) -> _Costs:
    """Draw what an interruption costs: one that was seen here, or one of the record."""
    waits_h = np.zeros(draws)
    if outlook.waits is not None:
        waits_h = outlook.waits.draw(
            rng,
            draws,
            2,
        )[:, 1]
    expected = _Costs(
        waits_h,
        np.full(draws, PRIOR_RESTART_H),
        rng.random(draws) * outlook.save_every_h,
    )
    count = len(outlook.costs)
    if not count:
        return expected
    table = np.array([(cost.wait_h, cost.restart_h, cost.lost_h) for cost in outlook.costs])
    rows = table[rng.integers(count, size=draws)]
    is_seen: Bools = rng.random(draws) * (count + PRIOR_EVENTS) < count
    return _Costs(
        np.where(
            is_seen,
            rows[:, 0],
            expected.wait_h,
        ),
        np.where(
            is_seen,
            rows[:, 1],
            expected.restart_h,
        ),
        np.where(
            is_seen,
            rows[:, 2],
            expected.lost_h,
        ),
    )


def _draw_present_costs(
    outlook: Outlook,
    rng: np.random.Generator,
    draws: int,
    down_for_h: float,
) -> _Costs:
    """Draw what is left of an interruption that has lasted for so long."""
    costs = [_draw_costs(outlook, rng, draws) for _ in range(4)]
    wait_h = np.concatenate([cost.wait_h for cost in costs])
    restart_h = np.concatenate([cost.restart_h for cost in costs])
    lost_h = np.concatenate([cost.lost_h for cost in costs])
    fits = np.flatnonzero(wait_h + restart_h > down_for_h)
    if len(fits):
        rows = fits[rng.integers(len(fits), size=draws)]
        left_h = wait_h[rows] - down_for_h
        # A machine may have come meanwhile, and the restart is under way.
        restart_left_h = restart_h[rows] + np.minimum(left_h, 0.0)
        return _Costs(
            np.maximum(left_h, 0.0),
            restart_left_h,
            lost_h[rows],
        )
    # Longer than any so far: what has lasted for long lasts for about as long again.
    rows = rng.integers(len(wait_h), size=draws)
    again_h = down_for_h * (1.0 / np.maximum(rng.random(draws), 1e-3) - 1.0)
    return _Costs(
        again_h,
        restart_h[rows],
        lost_h[rows],
    )
