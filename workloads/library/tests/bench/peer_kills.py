"""Kills of nodes of sharded gangs, alone and together, at random moments and named points.

    python -m workloads.library.tests.bench.peer_kills [--kills N] [--seed S]

A gang has four nodes, which are processes, and a small state. It is struck until it has done its
steps, then the next one begins; three gangs run at a time. The bits of each restore and of each end
must equal those of an undisturbed run.
"""

from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.fault_kinds import KINDS, endless
from workloads.library.tests.bench.gangs.fault_lane import (
    FALLBACKS,
    Found,
    Lane,
    Struck,
    judge_gangs,
    run_undisturbed,
)
from workloads.library.tests.bench.kill_lane import Records, run_command, share, side_by_side

LANES = 3
FEWEST = 10
"""Times that each fall-back must be taken in 300 kills."""


def count_fallbacks(blows: list[Struck]) -> dict[str, int]:
    """Counts how often each fall-back was taken."""
    counts = dict.fromkeys(FALLBACKS, 0)
    for blow in blows:
        for fallback in blow.taken:
            counts[fallback] += 1
    return counts


def count_kills(blows: list[Struck]) -> int:
    return sum(blow.kills for blow in blows)


def enough(blows: list[Struck], kills: int) -> bool:
    fewest = FEWEST * kills / 300
    return count_kills(blows) >= kills and min(count_fallbacks(blows).values()) >= fewest


def play(folder: Path, results: Records, *, kills: int, seed: int) -> None:
    reference = run_undisturbed(folder / "undisturbed")

    def lane(number: int) -> None:
        home = folder / f"lane-{number}"
        home.mkdir()
        blows = share(endless(seed), number, LANES, lambda: enough(results.of(Struck), kills))
        Lane(folder=home, reference=reference, results=results).play(blows)

    side_by_side(LANES, lane)


def verdict(results: Records, minimum: int) -> dict[str, Any]:
    blows = results.of(Struck)
    figures, goals_of_gangs = judge_gangs(blows, results.of(Found))
    fallbacks = count_fallbacks(blows)
    kills_by_kind = dict.fromkeys(KINDS, 0)
    for blow in blows:
        if blow.reached:
            kills_by_kind[blow.kind] += blow.kills
    goals = {
        f"at_least_{minimum}_kills": count_kills(blows) >= minimum,
        "every_kind_and_point": all(kills_by_kind.values()),
        **goals_of_gangs,
        "each_fallback_10_times": min(fallbacks.values()) >= FEWEST * minimum / 300,
    }
    return {
        "schema": "holdfast.bench.peer-kills/1",
        "kills": count_kills(blows),
        "kills_by_kind": kills_by_kind,
        **figures,
        "fallbacks": fallbacks,
        "goals": goals,
    }


if __name__ == "__main__":
    run_command(__doc__, play, verdict, kills=300)
