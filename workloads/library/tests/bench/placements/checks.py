"""What `place` states, held against the simulator and the closed forms; deadlines, and the regret
of a choice.
"""

from dataclasses import replace

import numpy as np

from holdfast.cost import prices
from holdfast.ledger import closed_forms
from holdfast.place import advice, break_even, policies, preemption_rate
from holdfast.place.job import Job
from holdfast.place.options import World
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Paths, Runs, runs_of
from holdfast.vocabulary.capacity import Placement
from holdfast.vocabulary.checkpoint_interval import daly
from workloads.library.tests.bench.placements.policies import DEADLINES_H, Trace, share


def daly_figures() -> bool:
    got = [daly(5 / 60, life_h) * 60 for life_h in (24, 6, 0.25)]
    print(
        "Daly's intervals for lives of 24 h, 6 h, 15 min:", ", ".join(f"{m:.1f} min" for m in got)
    )
    return [round(got[0]), round(got[1]), round(got[2], 1)] == [117, 57, 9.1]


def simulator_against_closed_forms() -> bool:
    worst = 0.0
    for churn in (0.1, 0.5, 2.0):
        interval = daly(30 / 3600, 1 / churn)
        cost = {
            "interval_h": interval,
            "checkpoint_h": 30 / 3600,
            "restart_h": 5 / 60,
        }
        work = interval * round(60 / interval)
        lives = (
            np.random.default_rng(1)
            .exponential(1 / churn, (4_000, 60 + int(work * churn * 4)))
            .cumsum(axis=1)
        )
        paths = Paths(edges_h=np.repeat(lives, 2, axis=1), starts_up=np.ones(4_000, bool))
        got = simulate(
            runs_of(
                4_000,
                work_h=work,
                interval_h=interval,
                checkpoint_h=30 / 3600,
                restart_h=5 / 60,
            ),
            paths,
            policies.WAIT,
        ).finish_h.mean()
        closed = (
            closed_forms.expected_hours(work, churn=churn, **cost)
            + np.expm1(churn * 5 / 60) / churn
        )
        worst = max(worst, abs(got / closed - 1))
    print(f"simulator against the closed form: at most {worst:.2%} apart")
    return bool(worst < 0.01)


def choice_regret(traces: list[Trace], starts: int) -> bool:
    """The policy chosen on one half of each recording, judged on the other half against the best
    there, in points.
    """
    regrets: list[float] = []
    for trace in traces:
        half = trace.hours / 2
        rng = np.random.default_rng(2)
        for deadline in DEADLINES_H:
            known, seen = (
                {
                    p.name: share(trace, p, deadline, rng.uniform(low, low + half, starts))
                    for p in policies.IN_TIME
                }
                for low in (0.0, half)
            )
            regrets.append(seen[min(known, key=lambda name: known[name])] - min(seen.values()))
    mean = float(np.mean(regrets))
    worst = max(regrets)
    print(
        f"choice on one half, judged on the other: regret {mean:.2f} points on average, at worst"
        f" {worst:.2f}"
    )
    return mean <= 0.5


def flips() -> bool:
    worst = 0.0
    for hours in (1.0, 5.0, 40.0, 400.0):
        asked = Job(accelerator="nvidia-tesla-a100", gpus=1, hours=hours)
        world = World(
            prices=prices.load(),
            churn=preemption_rate.fixed(0.1),
            spot_wait_h=0.25 / 3,
        )
        flip = break_even.flip(asked, world, "us-central1")
        assert flip is not None
        there = replace(world, churn=preemption_rate.fixed(flip.churn_per_hour))
        means = {}
        for o in advice.options(asked, there, "us-central1"):
            if not o.refused:
                means[o.placement] = o.mean_usd
        apart = (
            means[Placement.SPOT] / min(means[Placement.FLEX_START], means[Placement.ON_DEMAND]) - 1
        )
        print(
            f"  flip for {hours:g} h at {flip.churn_per_hour:.3g} an hour: Spot {apart:+.2%}"
            " against its rival"
        )
        worst = max(worst, abs(apart))
    return worst < 0.02


def mixed_runs(count: int, seed: int) -> tuple[Runs, Paths]:
    """Jobs of every kind that a deadline still allows, on capacity from hopeless to calm."""
    rng = np.random.default_rng(seed)
    spells = rng.lognormal(rng.normal(0, 1.2, (count, 1)), 1.3, (count, 240))
    path = Paths(edges_h=spells.cumsum(axis=1), starts_up=rng.random(count) < 0.5)
    work = rng.uniform(0.5, 100, count)
    restart = rng.uniform(0, 0.6, count)
    runs = Runs(
        work_h=work,
        restart_h=restart,
        # Feasible means: on-demand from the start arrives. A third of the jobs has not a minute
        # more.
        deadline_h=work + restart + np.where(rng.random(count) < 0.33, 0.0, rng.exponential(work)),
        interval_h=rng.choice([0.0, 0.1, 1.0, np.inf], count),
        checkpoint_h=rng.uniform(0, 0.05, count),
        spot_usd=rng.uniform(0.1, 1.2, count),
        on_demand_usd=np.ones(count),
        idle_usd=np.zeros(count),
        keep_h=np.zeros(count),
        path=np.arange(count),
        offset_h=rng.uniform(0, 50, count),
    )
    return runs, path


def never_late() -> bool:
    count = 10_000
    runs, paths = mixed_runs(count, seed=7)
    late = {}
    for p in policies.IN_TIME:
        late[p.name] = int(np.sum(simulate(runs, paths, p).finish_h > runs.deadline_h + 1e-6))
    print(f"of {count} feasible deadlines missed: {late}")
    return not any(late.values())
