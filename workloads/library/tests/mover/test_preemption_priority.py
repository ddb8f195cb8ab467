"""What is at stake in a job becomes a bounded boost of its priority, and costs fewer node-hours
than Kueue's own order.
"""

import random
from typing import Any

from holdfast.ledger.events import Event
from holdfast.mover.preemption_priority import (
    ANNOTATION_BOOST,
    MIN_RUN_S,
    MOST,
    at_stake_s,
    choose_boost,
    write,
)
from holdfast.support.values import rfc3339
from holdfast.vocabulary.kubernetes import PRIORITIES, PRIORITY_FLEX, PRIORITY_SPOT
from workloads.library.tests.mover.server import Server

NOW = 10_000.0


def event(kind: str, ago_s: float) -> Event:
    return Event(int((NOW - ago_s) * 1e6), kind, "job", "training", "p", {})


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


def written(*workloads: Any, hours: float = 1.0, **refuse: int) -> dict[str, str]:
    server: Any = Server(list(workloads), refuse=refuse)
    count = write(server, lambda uid: [event("commit", hours * 3_600)], NOW, ["training"])
    assert count == (0 if refuse else len(server.merged))
    return {
        name: change["metadata"]["annotations"][ANNOTATION_BOOST]
        for name, change in server.merged.items()
    }


def test_work_since_the_newest_save_restore_or_start_is_at_stake() -> None:
    assert at_stake_s([event("start", 900), event("commit", 600), event("window", 10)], NOW) == 600
    assert at_stake_s([event("commit", 600), event("restore", 20)], NOW) == 20
    assert at_stake_s([event("window", 10)], NOW) == at_stake_s([], NOW) == 0, (
        "it says nothing of what it has saved"
    )


def test_each_level_takes_twice_as_many_node_minutes_and_is_left_by_two_or_for_good_so_that_nothing_flaps() -> (
    None
):
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


def test_a_gang_has_more_at_stake_than_a_pod_and_what_waits_has_nothing() -> None:
    assert written(workload("one"), workload("gang", count=8), hours=0.2) == {
        "w-one": "1",
        "w-gang": "4",
    }
    assert written(workload("u", present="4", Admitted="False")) == {"w-u": "0"}
    assert written(workload("u", present="3", Finished="True")) == {"w-u": "0"}


def test_a_job_that_has_just_been_started_gets_its_minimum_of_run_time_first() -> None:
    """Else the next urgent job takes the one that saved last, which is the one that began last: it
    never gets anywhere.
    """

    def since(ago_s: float) -> Any:
        found = workload(f"u{ago_s:.0f}")
        found["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - ago_s)
        return found

    young = since(MIN_RUN_S - 1)
    old = since(MIN_RUN_S)
    assert written(young, old, hours=0) == {f"w-u{MIN_RUN_S - 1:.0f}": str(MOST)}
    young["status"]["conditions"][0]["status"] = "False"
    assert written(young, hours=0) == {}, "what waits has none"


def test_what_is_written_already_is_not_written_again_and_what_a_stranger_wrote_is_mended() -> None:
    assert written(workload("u", present="3")) == {}
    assert written(workload("u", present="1000000")) == {"w-u": "3"}
    assert written(workload("u", present="no number")) == {"w-u": "3"}


def test_a_refused_boost_stops_no_other() -> None:
    assert written(workload("a"), workload("b"), merge=409) == {}


def lost_node_h(by_stake: bool, seed: int) -> float:
    """Node-hours lost in a month in which 12 jobs of 1 to 8 nodes run, and four times a day one
    must yield without a save.
    """
    drawn = random.Random(seed)
    jobs = []
    for _ in range(12):
        jobs.append(
            (drawn.choice((1, 1, 2, 4, 8)), drawn.uniform(600, 7_200), drawn.uniform(0, 7_200))
        )
    admitted = [drawn.uniform(0, 3_600) for _ in jobs]
    lost = 0.0
    for when in sorted(drawn.uniform(3_600, 30 * 86_400) for _ in range(120)):
        # Since its save, or since it came back.
        since = [
            min((when - phase) % every, when - at)
            for (_, every, phase), at in zip(jobs, admitted, strict=True)
        ]
        stakes = [nodes * s for (nodes, *_), s in zip(jobs, since, strict=True)]
        order = [
            (choose_boost(s) if by_stake else 0, -at, i)
            for i, (s, at) in enumerate(zip(stakes, admitted, strict=True))
        ]
        *_, victim = min(order)
        lost += stakes[victim] / 3_600
        admitted[victim] = when + 600
    return lost


def test_fewer_node_hours_are_lost_than_by_kueues_own_order() -> None:
    pairs = [(lost_node_h(True, seed), lost_node_h(False, seed)) for seed in range(20)]
    ours, kueues = (sum(each) / len(pairs) for each in zip(*pairs, strict=True))
    print(
        f"node-hours lost in a month of 120 preemptions: {ours:.1f} by stake, {kueues:.1f} by"
        " Kueue's order"
    )
    assert ours < 0.5 * kueues
