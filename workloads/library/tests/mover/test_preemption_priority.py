"""Tests that work at stake boosts a priority within bounds, and loses less than Kueue's order."""

import random
import statistics
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
    for kind, value in ({"Admitted": "True"} | conditions).items():
        rows.append({"type": kind, "status": value})
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
    assert at_stake_s(saved, NOW, long_ago) == 600
    assert at_stake_s([event("commit", 600), event("restore", 20)], NOW, long_ago) == 20


def test_program_without_lines_counts_by_its_age() -> None:
    """It must not yield before all others because it prints nothing."""
    assert at_stake_s([], NOW, NOW - 700) == 700
    assert at_stake_s([event("window", 10)], NOW, NOW - 700) == 700
    assert at_stake_s([], NOW, 0.0) == 0


def test_a_start_forged_to_yesterday_counts_from_the_admission() -> None:
    body = workload("forger")
    body["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - MIN_RUN_S)
    assert write_all(body, hours=24) == {"w-forger": "1"}


def test_priority_levels_double_with_hysteresis() -> None:
    assert [choose_boost(60 * minutes) for minutes in (0, 7.9, 8, 16, 32, 64, 10_000)] == [
        0,
        0,
        1,
        2,
        3,
        4,
        MOST,
    ]
    assert [choose_boost(60 * minutes, before=3) for minutes in (33, 31, 17, 15, 0)] == [
        3,
        3,
        3,
        1,
        0,
    ]


def test_no_boost_reaches_the_next_priority_class() -> None:
    assert PRIORITIES[PRIORITY_SPOT].value + MOST < PRIORITIES[PRIORITY_FLEX].value


def test_a_gang_has_more_at_stake_than_a_pod_or_a_waiting_job() -> None:
    assert write_all(workload("one"), workload("gang", count=8), hours=0.2) == {
        "w-one": "1",
        "w-gang": "4",
    }
    assert write_all(workload("u", present="4", Admitted="False")) == {"w-u": "0"}
    assert write_all(workload("u", present="3", Finished="True")) == {"w-u": "0"}


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
    assert write_all(workload("u", present="3")) == {}
    assert write_all(workload("u", present="1000000")) == {"w-u": "3"}
    assert write_all(workload("u", present="no number")) == {"w-u": "3"}


def test_a_refused_boost_does_not_stop_the_others() -> None:
    assert write_all(workload("a"), workload("b"), merge=409) == {}


def simulate_lost_h(by_stake: bool, seed: int) -> float:
    """Returns the node-hours lost in a month.

    12 jobs of 1 to 8 nodes run, and four times a day one must yield without a save.
    """
    rng = random.Random(seed)
    jobs = []
    for _ in range(12):
        nodes = rng.choice((1, 1, 2, 4, 8))
        jobs.append((nodes, rng.uniform(600, 7_200), rng.uniform(0, 7_200)))
    admitted = [rng.uniform(0, 3_600) for _ in jobs]
    preemptions = sorted(rng.uniform(3_600, 30 * 86_400) for _ in range(120))
    lost_node_h = 0.0
    for now in preemptions:
        stakes = []
        order = []
        for number, (nodes, interval, phase) in enumerate(jobs):
            # Work counts since its save, or since it came back.
            unsaved_s = min((now - phase) % interval, now - admitted[number])
            stake = nodes * unsaved_s
            boost = choose_boost(stake) if by_stake else 0
            stakes.append(stake)
            order.append((boost, -admitted[number], number))
        *_, victim = min(order)
        lost_node_h += stakes[victim] / 3_600
        admitted[victim] = now + 600
    return lost_node_h


def test_fewer_node_hours_are_lost_than_in_kueues_order() -> None:
    by_stake_h = statistics.mean(simulate_lost_h(True, seed) for seed in range(20))
    by_kueue_h = statistics.mean(simulate_lost_h(False, seed) for seed in range(20))
    print(
        f"node-hours lost in a month of 120 preemptions: {by_stake_h:.1f} by stake,"
        f" {by_kueue_h:.1f} by Kueue's order"
    )
    assert by_stake_h < 0.5 * by_kueue_h
