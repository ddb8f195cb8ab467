"""The figures of `place` against the simulator and closed forms; deadlines, regret of a choice."""

from dataclasses import replace

import numpy as np

from holdfast.cost import prices
from holdfast.ledger import closed_forms
from holdfast.place import advice, break_even, policies, preemption_rate
from holdfast.place.job import Job
from holdfast.place.options import World
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Paths, Runs, make_runs
from holdfast.vocabulary.capacity import Placement
from holdfast.vocabulary.checkpoint_interval import find_best_interval
from workloads.library.tests.bench.placements.policies import DEADLINES_H, Trace, share


def daly_figures() -> bool:
    minutes = []
    for life_h in (24, 6, 0.25):
        minutes.append(find_best_interval(5 / 60, life_h) * 60)
    day, quarter_day, quarter_hour = minutes
    text = f"{day:.1f} min, {quarter_day:.1f} min, {quarter_hour:.1f} min"
    print("Daly's intervals for lives of 24 h, 6 h, 15 min:", text)
    return round(day) == 117 and round(quarter_day) == 57 and round(quarter_hour, 1) == 9.1


def simulator_against_closed_forms() -> bool:
    worst = 0.0
    for churn in (0.1, 0.5, 2.0):
        interval = find_best_interval(30 / 3600, 1 / churn)
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
        edges_h = np.repeat(lives, 2, axis=1)
        paths = Paths(edges_h=edges_h, starts_up=np.ones(4_000, bool))
        runs = make_runs(4_000, work_h=work, **cost)
        mean_h = simulate(runs, paths, policies.WAIT).finish_h.mean()
        first_start_h = np.expm1(churn * 5 / 60) / churn
        closed_h = closed_forms.expected_hours(work, churn=churn, **cost) + first_start_h
        worst = max(worst, abs(mean_h / closed_h - 1))
    print(f"simulator against the closed form: at most {worst:.2%} apart")
    return bool(worst < 0.01)


def choice_regret(traces: list[Trace], starts: int) -> bool:
    """Judges a policy, chosen on one half of a recording, against the best on the other half."""
    regrets: list[float] = []
    for trace in traces:
        half = trace.hours / 2
        rng = np.random.default_rng(2)
        for deadline in DEADLINES_H:
            first_half: dict[str, float] = {}
            second_half: dict[str, float] = {}
            for low_h, costs in ((0.0, first_half), (half, second_half)):
                for policy in policies.IN_TIME:
                    offset_h = rng.uniform(low_h, low_h + half, starts)
                    costs[policy.name] = share(trace, policy, deadline, offset_h)
            choice = min(first_half, key=lambda name: first_half[name])
            regrets.append(second_half[choice] - min(second_half.values()))
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
        job = Job(accelerator="nvidia-tesla-a100", gpus=1, hours=hours)
        world = World(
            prices=prices.load(),
            churn=preemption_rate.assume(0.1),
            spot_wait_h=0.25 / 3,
        )
        flip = break_even.flip(job, world, "us-central1")
        assert flip is not None
        world_at_flip = replace(world, churn=preemption_rate.assume(flip.churn_per_hour))
        means = {}
        for option in advice.options(job, world_at_flip, "us-central1"):
            if not option.refused:
                means[option.placement] = option.mean_usd
        rival = min(means[Placement.FLEX_START], means[Placement.ON_DEMAND])
        difference = means[Placement.SPOT] / rival - 1
        print(
            f"  flip for {hours:g} h at {flip.churn_per_hour:.3g} an hour: Spot {difference:+.2%}"
            " against its rival"
        )
        worst = max(worst, abs(difference))
    return worst < 0.02


def mixed_runs(count: int, seed: int) -> tuple[Runs, Paths]:
    """Draws jobs of every kind with feasible deadlines, on capacity from hopeless to calm."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 1.2, (count, 1))
    spells = rng.lognormal(means, 1.3, (count, 240))
    path = Paths(edges_h=spells.cumsum(axis=1), starts_up=rng.random(count) < 0.5)
    work = rng.uniform(0.5, 100, count)
    restart = rng.uniform(0, 0.6, count)
    runs = Runs(
        work_h=work,
        restart_h=restart,
        # A deadline is feasible if on-demand from the start meets it. A third of the jobs has no
        # slack beyond that.
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
    for policy in policies.IN_TIME:
        finish_h = simulate(runs, paths, policy).finish_h
        is_late = finish_h > runs.deadline_h + 1e-6
        late[policy.name] = int(np.sum(is_late))
    print(f"of {count} feasible deadlines missed: {late}")
    return not any(late.values())
