"""Kills of nodes of sharded gangs that go on with fewer nodes and grow again.

    python -m workloads.library.tests.bench.resize_kills [--kills N] [--seed S]

A gang has four nodes, which are processes, and goes on with one. Two gangs run at a time, one with
copies in memory and one with copies on the disk. The bits of each start and of each step must equal
those of an undisturbed run on two nodes.
"""

from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.fault_lane import Found, judge_gangs
from workloads.library.tests.bench.gangs.resize_lane import (
    KINDS,
    Lane,
    Resized,
    endless,
    run_undisturbed,
)
from workloads.library.tests.bench.kill_lane import Records, run_command, share, side_by_side

LANES = 2


def count_kills(blows: list[Resized]) -> int:
    return sum(blow.kills for blow in blows)


def play(folder: Path, results: Records, *, kills: int, seed: int) -> None:
    reference = run_undisturbed(folder / "undisturbed")

    def lane(number: int) -> None:
        home = folder / f"lane-{number}"
        home.mkdir()
        blows = share(
            endless(seed), number, LANES, lambda: count_kills(results.of(Resized)) >= kills
        )
        Lane(
            folder=home,
            reference=reference,
            results=results,
            on_disk=bool(number),
        ).play(blows)

    side_by_side(LANES, lane)


def verdict(results: Records, minimum: int) -> dict[str, Any]:
    blows = results.of(Resized)
    figures, goals_of_gangs = judge_gangs(blows, results.of(Found))
    kills_by_kind = dict.fromkeys(KINDS, 0)
    sizes = set[int]()
    for blow in blows:
        kills_by_kind[blow.kind] += blow.kills
        sizes |= {*blow.sizes}
    goals = {
        f"at_least_{minimum}_kills": count_kills(blows) >= minimum,
        "every_kind": all(kills_by_kind.values()),
        **goals_of_gangs,
    }
    return {
        "schema": "holdfast.bench.resize-kills/1",
        "kills": count_kills(blows),
        "kills_by_kind": kills_by_kind,
        "sizes": sorted(sizes),
        **figures,
        "goals": goals,
    }


if __name__ == "__main__":
    run_command(__doc__, play, verdict, kills=200)
