"""Kills of nodes of sharded gangs that go on with fewer nodes and grow again.

    python -m workloads.library.tests.bench.resize_kills [--kills N] [--seed S]

A gang has four nodes, which are processes, and goes on with one. Two gangs run at a time, one with
copies in memory and one with copies on the disk. The bits of each start and of each step must equal
those of an undisturbed run on two nodes.
"""

from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.fault_lane import Found
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
    gangs = results.of(Found)
    starts = 0
    wrong = list[str]()
    zombies = list[str]()
    for record in (*blows, *gangs):
        starts += record.starts
        wrong += [text[:2000] for text in record.wrong]
        zombies += record.zombies
    stuck = [gang.stuck[:2000] for gang in gangs if gang.stuck]
    kills_by_kind = dict.fromkeys(KINDS, 0)
    sizes = set[int]()
    for blow in blows:
        kills_by_kind[blow.kind] += blow.kills
        sizes |= {*blow.sizes}
    goals = {
        f"at_least_{minimum}_kills": count_kills(blows) >= minimum,
        "every_kind": all(kills_by_kind.values()),
        "wrong_0": bool(gangs) and not wrong,
        "stuck_0": bool(gangs) and not stuck,
        "commits_by_zombies_0": bool(gangs) and not zombies,
    }
    return {
        "schema": "holdfast.bench.resize-kills/1",
        "kills": count_kills(blows),
        "kills_by_kind": kills_by_kind,
        "sizes": sorted(sizes),
        "gangs": len(gangs),
        "starts_compared": starts,
        "wrong": len(wrong),
        "commits_by_zombies": len(zombies),
        "stuck": len(stuck),
        "examples": [*wrong[:3], *zombies[:3], *stuck[:3]],
        "goals": goals,
    }


if __name__ == "__main__":
    run_command(__doc__, play, verdict, kills=200)
