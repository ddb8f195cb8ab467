"""`make bench-placement`: policies side by side, their speed, and the goals of placement."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Policy
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Runs, take
from workloads.library.tests.bench.placements.checks import (
    choice_regret,
    daly_figures,
    flips,
    never_late,
    simulator_against_closed_forms,
)
from workloads.library.tests.bench.placements.gangs import goals as gang_goals
from workloads.library.tests.bench.placements.optimum import optimum_gaps
from workloads.library.tests.bench.placements.policies import (
    COMPARED,
    ON_DEMAND_ONLY,
    RATIO,
    Trace,
    dominates,
    make_paths,
    make_traces,
    side_by_side,
)
from workloads.library.tests.bench.result import finish, options

ANSWER = [
    "place",
    "--anywhere",
    "all",
    "--gpu",
    "a100",
    "--gpus",
    "8",
    "--hours",
    "40",
    "--deadline",
    "72h",
]


def main() -> None:
    arguments = options(__doc__, starts=2_000, jobs=1_000)
    goals = {
        "daly_117_57_9_minutes": daly_figures(),
        "simulator_equals_closed_forms_within_1_percent": simulator_against_closed_forms(),
    }
    traces = make_traces()
    costs = side_by_side(traces, arguments.starts)
    goals["patient_costs_no_more_than_uniform_on_each_trace"] = dominates(costs)
    goals["none_of_10000_feasible_deadlines_missed"] = never_late()
    gaps = optimum_gaps(traces, min(arguments.starts, 40))
    goals["chosen_within_5_percent_of_the_offline_optimum_at_70_h"] = gaps[70.0]["chosen"] <= 5.0
    goals["chosen_within_8_percent_of_the_offline_optimum_at_52_h"] = gaps[52.0]["chosen"] <= 8.0
    goals |= gang_goals()
    goals["choice_within_half_a_point_of_the_best_policy"] = choice_regret(
        traces, min(arguments.starts, 300)
    )
    goals["printed_flip_within_2_percent_of_the_simulated"] = flips()
    cpu_s = time_policies(traces, arguments.jobs, 200)
    goals["1000_jobs_200_starts_all_policies_under_8_cpu_s"] = cpu_s < 8.0
    answers_s = command_cpu_s(ANSWER)
    goals["an_answer_under_0.6_cpu_s"] = answers_s < 0.6
    goals["help_under_0.3_cpu_s"] = command_cpu_s(["place", "--help"]) < 0.3
    chosen_gaps = {}
    for hours, gap in gaps.items():
        chosen_gaps[f"{hours:g} h"] = gap["chosen"]
    figures = {
        "schema": "holdfast.bench/1",
        "bench": "placement",
        "cpu_seconds": cpu_s,
        "percent_of_on_demand": costs,
        "above_optimum_percent": chosen_gaps,
        "worst_above_optimum_percent": max(chosen_gaps.values()),
    }
    finish(figures, goals)


def time_policies(traces: list[Trace], jobs: int, starts: int) -> float:
    """Returns CPU seconds of simulating jobs under all policies.

    Jobs take 4 to 48 h with slack of 5 % to 200 %, each from `starts` places of one recording.
    """
    rng = np.random.default_rng(3)
    paths = make_paths(traces)
    work = np.repeat(rng.uniform(4, 48, jobs), starts)
    path = np.repeat(rng.integers(len(traces), size=jobs), starts)
    count = jobs * starts
    runs = Runs(
        work_h=work,
        restart_h=np.repeat(rng.uniform(0.05, 0.4, jobs), starts),
        deadline_h=work * np.repeat(rng.uniform(1.15, 3, jobs), starts) + 0.5,
        interval_h=np.full(count, 0.3),
        checkpoint_h=np.full(count, 0.01),
        spot_usd=np.full(count, 1 / RATIO),
        on_demand_usd=np.ones(count),
        idle_usd=np.zeros(count),
        keep_h=np.zeros(count),
        path=path,
        offset_h=rng.uniform(0, np.array([trace.hours for trace in traces])[path]),
    )
    everything: tuple[Policy, ...] = (policies.WAIT, ON_DEMAND_ONLY, *COMPARED)
    # Larger parts would outgrow the caches.
    parts = []
    for first in range(0, count, 100_000):
        parts.append(slice(first, first + 100_000))
    start = time.process_time()
    for policy in everything:
        for part in parts:
            simulate(take(runs, part), paths, policy)
    return time.process_time() - start


def command_cpu_s(arguments: list[str]) -> float:
    """Returns CPU seconds of one command with its start; the least of three, as noise only adds."""
    cpu_s: list[float] = []
    holdfast = Path(sys.executable).with_name("holdfast")  # the command that users run
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([holdfast, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"`holdfast {' '.join(arguments)}`: {min(cpu_s):.2f} s of CPU")
    return min(cpu_s)


if __name__ == "__main__":
    main()
