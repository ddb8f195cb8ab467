"""Tests that work at stake boosts a priority within bounds, and loses less than Kueue's order."""

import random
import statistics
from dataclasses import dataclass
from typing import Any

from holdfast.ledger.events import Event
from holdfast.mover.preemption_priority import (
    ANNOTATION_BOOST,
    MIN_RUN_S,
    MOST,
    at_stake_s,
    choose_boost,
    write_boosts,
)
from holdfast.support.values import rfc3339
from holdfast.vocabulary.kubernetes import PRIORITIES, PRIORITY_FLEX, PRIORITY_SPOT
from workloads.library.tests.mover.server import Server

NOW = 10_000.0


def event(kind: str, ago_s: float) -> Event:
    return Event(
        int((NOW - ago_s) * 1e6),
        kind,
        "job",
        "training",
        "p",
        {},
    )


def workload(uid: str = "u", *, count: int = 1, present: str = "", **conditions: str) -> Any:
    meta = {
        "name": f"w-{uid}",
        "namespace": "training",
        "ownerReferences": [{"uid": uid, "controller": True}],
    }
    meta |= {"annotations": {ANNOTATION_BOOST: present}} if present else {}
    rows = []
    values = {"Admitted": "True"} | conditions
    for kind, value in values.items():
        row = {"type": kind, "status": value}
        rows.append(row)
    return {
        "metadata": meta,
        "spec": {"podSets": [{"count": count}]},
        "status": {"conditions": rows},
    }


def write_all(*workloads: Any, hours: float = 1.0, **refuse: int) -> dict[str, str]:
    server: Any = Server(list(workloads), refuse=refuse)
    count = write_boosts(
        server,
        lambda uid: [event("commit", hours * 3_600)],
        NOW,
        ["training"],
    )
    assert count == (0 if refuse else len(server.merged))
    boosts: dict[str, str] = {}
    for name, change in server.merged.items():
        boosts[name] = change["metadata"]["annotations"][ANNOTATION_BOOST]
    return boosts


def test_work_since_the_newest_save_restore_or_start_is_at_stake() -> None:
    long_ago = NOW - 5_000
    saved = [
        event("start", 900),
        event("commit", 600),
        event("window", 10),
    ]
    came_back = [
        event("commit", 600),
        event("restore", 20),
    ]
    assert at_stake_s(saved, NOW, long_ago) == 600
    assert at_stake_s(came_back, NOW, long_ago) == 20


def test_program_without_lines_counts_by_its_age() -> None:
    """It must not yield before all others because it prints nothing."""
    assert at_stake_s([], NOW, NOW - 700) == 700
    assert at_stake_s([event("window", 10)], NOW, NOW - 700) == 700
    assert at_stake_s([], NOW, 0.0) == 0


def test_forged_lines_give_no_more_than_the_age_that_kueue_states() -> None:
    """A job gains by forged lines only what a program without lines has anyway."""
    admitted_s = NOW - 1_800
    by_age_s = at_stake_s([], NOW, admitted_s)
    hidden_commits = [event("start", 1_790), event("window", 10)]
    start_of_yesterday = [event("start", 86_400)]
    old_commit_after_new = [event("commit", 5), event("commit", 86_400)]
    assert at_stake_s(hidden_commits, NOW, admitted_s) <= by_age_s
    assert at_stake_s(start_of_yesterday, NOW, admitted_s) == by_age_s
    assert at_stake_s(old_commit_after_new, NOW, admitted_s) == 5
    body = workload("forger")
    body["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - MIN_RUN_S)
    assert write_all(body, hours=24) == {"w-forger": "1"}


def test_priority_levels_double_with_hysteresis() -> None:
    levels = {
        0: 0,
        7.9: 0,
        8: 1,
        16: 2,
        32: 3,
        64: 4,
        10_000: MOST,
    }
    for minutes, level in levels.items():
        assert choose_boost(60 * minutes) == level
    after_level_3 = {
        33: 3,
        31: 3,
        17: 3,
        15: 1,
        0: 0,
    }
    for minutes, level in after_level_3.items():
        assert choose_boost(60 * minutes, before=3) == level


def test_no_boost_reaches_the_next_priority_class() -> None:
    assert PRIORITIES[PRIORITY_SPOT].value + MOST < PRIORITIES[PRIORITY_FLEX].value


def test_a_gang_has_more_at_stake_than_a_pod_or_a_waiting_job() -> None:
    pod = workload("one")
    gang = workload("gang", count=8)
    waiting = workload("u", present="4", Admitted="False")
    finished = workload("u", present="3", Finished="True")
    assert write_all(pod, gang, hours=0.2) == {
        "w-one": "1",
        "w-gang": "4",
    }
    assert write_all(waiting) == {"w-u": "0"}
    assert write_all(finished) == {"w-u": "0"}


def test_an_admitted_job_gets_its_minimum_run_time_first() -> None:
    """Otherwise the next urgent job preempts the one that started last, which gets nowhere."""

    def since(ago_s: float) -> Any:
        body = workload(f"u{ago_s:.0f}")
        body["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - ago_s)
        return body

    young = since(MIN_RUN_S - 1)
    old = since(MIN_RUN_S)
    assert write_all(young, old, hours=0) == {f"w-u{MIN_RUN_S - 1:.0f}": str(MOST)}
    young["status"]["conditions"][0]["status"] = "False"
    assert write_all(young, hours=0) == {}, "a waiting job has no boost"


def test_only_wrong_boosts_are_written() -> None:
    right = workload("u", present="3")
    too_high = workload("u", present="1000000")
    no_number = workload("u", present="no number")
    assert write_all(right) == {}
    assert write_all(too_high) == {"w-u": "3"}
    assert write_all(no_number) == {"w-u": "3"}


def test_a_refused_boost_does_not_stop_the_others() -> None:
    assert write_all(workload("a"), workload("b"), merge=409) == {}


@dataclass
class SimulatedJob:
    nodes: int
    interval_s: float
    phase_s: float
    admitted_s: float = 0.0
    saves: bool = True
    shows_saves: bool = True
    lost_node_h: float = 0.0

    def count_unsaved_s(self, now_s: float) -> float:
        """Returns the work since its save, or since it came back."""
        age_s = now_s - self.admitted_s
        if not self.saves:
            return age_s
        return min((now_s - self.phase_s) % self.interval_s, age_s)

    def choose_boost(self, now_s: float, silent_most: int) -> int:
        age_s = now_s - self.admitted_s
        if age_s < MIN_RUN_S:
            return MOST
        if self.shows_saves:
            return choose_boost(self.nodes * self.count_unsaved_s(now_s))
        boost = choose_boost(self.nodes * age_s)
        return min(boost, silent_most)


def simulate_month(
    seed: int,
    *,
    by_stake: bool = True,
    saves: bool = True,
    shows_saves: bool = True,
    silent_most: int = MOST,
) -> tuple[float, float]:
    """Returns the node-hours that the first job loses in a month, and those of the others.

    12 jobs of 1 to 8 nodes run, and four times a day one must yield without a save. `saves` and
    `shows_saves` describe the first job; `silent_most` bounds the boost of a job that shows none.
    """
    rng = random.Random(seed)
    jobs: list[SimulatedJob] = []
    for _ in range(12):
        nodes = rng.choice((1, 1, 2, 4, 8))
        interval_s = rng.uniform(600, 7_200)
        phase_s = rng.uniform(0, 7_200)
        job = SimulatedJob(nodes, interval_s, phase_s)
        jobs.append(job)
    for job in jobs:
        job.admitted_s = rng.uniform(0, 3_600)
    first = jobs[0]
    first.saves = saves
    first.shows_saves = shows_saves
    preemptions = sorted(rng.uniform(3_600, 30 * 86_400) for _ in range(120))
    for now_s in preemptions:
        order = []
        for number, job in enumerate(jobs):
            boost = job.choose_boost(now_s, silent_most) if by_stake else 0
            order.append((boost, -job.admitted_s, number))
        *_, number = min(order)
        victim = jobs[number]
        victim.lost_node_h += victim.nodes * max(0.0, victim.count_unsaved_s(now_s)) / 3_600
        victim.admitted_s = now_s + 600
    others_h = sum(job.lost_node_h for job in jobs[1:])
    return first.lost_node_h, others_h


def average_months(**settings: Any) -> tuple[float, float]:
    months = [simulate_month(seed, **settings) for seed in range(20)]
    own_h, others_h = zip(*months, strict=True)
    return statistics.mean(own_h), statistics.mean(others_h)


def test_fewer_node_hours_are_lost_than_in_kueues_order() -> None:
    by_stake_h = sum(average_months())
    by_kueue_h = sum(average_months(by_stake=False))
    print(
        f"node-hours lost in a month of 120 preemptions: {by_stake_h:.1f} by stake,"
        f" {by_kueue_h:.1f} by Kueue's order"
    )
    assert by_stake_h < 0.5 * by_kueue_h


def test_a_cap_against_hidden_saves_costs_more_than_they_take() -> None:
    """Nothing in the cluster tells a job that hides its saves from one that cannot save."""
    _, others_h = average_months()
    own_h, others_beside_forger_h = average_months(shows_saves=False)
    assert own_h == 0
    taken_h = others_beside_forger_h - others_h
    unable_h, _ = average_months(saves=False, shows_saves=False)
    capped_h, _ = average_months(saves=False, shows_saves=False, silent_most=2)
    cost_h = capped_h - unable_h
    print(
        f"node-hours in a month: a job that hides its saves takes {taken_h:.1f} from 11 others;"
        f" a cap of 2 costs a job that cannot save {cost_h:.1f}"
    )
    assert 0 < taken_h < 0.1 * cost_h
