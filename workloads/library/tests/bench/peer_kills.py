"""`python -m workloads.library.tests.bench.peer_kills [--kills N] [--seed S]`: kill nodes of sharded gangs, alone and together, at random moments and at each named point.

Four nodes as processes with a small state. A gang is struck until it has done its steps, then the next one begins, three
gangs at a time. The bits of each restore and of each end are held against those of a run that nothing disturbed. With
--minutes it stops early, and with the same --results file the next call goes on. Prints a table, then one JSON line
with the goals.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.kill_lane import played
from workloads.library.tests.bench.peer_kinds import IN_AN_EPOCH_CHANGE, KINDS, POINTS, Blow, endless
from workloads.library.tests.bench.peer_play import FALLBACKS, Lane, Results, undisturbed
from workloads.library.tests.training.warm import Fork

LANES = 3
FEWEST = 10
"""Times that each fall-back must have been taken, of 300 kills."""


def enough(results: Results, kills: int) -> bool:
    taken = Counter(name for each in results.struck() for name in each.taken)
    return results.kills() >= kills and all(taken[name] >= FEWEST * kills / 300 for name in FALLBACKS)


def share(lane: int, results: Results, *, kills: int, seed: int, until: float) -> Iterator[Blow]:
    """One lane's blows, from where an earlier slice ended, until all that is wanted has come or the time is up."""
    played = {each.number for each in results.struck()}
    for blow in endless(seed):
        if blow.number % LANES != lane or blow.number in played:
            continue
        if enough(results, kills) or time.monotonic() > until:
            return
        print(f"{results.kills():4d} killed, next: {blow.kind}", file=sys.stderr, flush=True)
        yield blow


def play(folder: Path, results: Results, *, kills: int, seed: int, minutes: float) -> None:
    until = time.monotonic() + minutes * 60
    reference = undisturbed(folder / "undisturbed")

    def lane(number: int) -> None:
        mine = share(number, results, kills=kills, seed=seed, until=until)
        own = folder / f"lane-{number}"
        own.mkdir()
        Lane(folder=own, reference=reference, results=results).play(mine)

    lanes = [Fork(lambda number=number: lane(number)) for number in range(LANES)]
    if any([fork.wait() for fork in lanes]):
        raise RuntimeError("a lane ended early")


def verdict(results: Results, wanted: int) -> dict[str, Any]:
    struck, ended = results.struck(), results.ended()
    found = [*struck, *ended]
    wrong = [text[:2000] for each in found for text in each.wrong]
    zombies = [text for each in found for text in each.zombies]
    stuck = [each.stuck[:2000] for each in ended if each.stuck]
    taken = Counter(name for each in struck for name in each.taken)
    kinds = Counter[str]()
    for each in struck:
        kinds[each.kind] += each.kills if each.reached else 0
    seconds = sorted(each.seconds for each in struck) or [0.0]
    goals = {
        f"at_least_{wanted}_kills": results.kills() >= wanted,
        "every_kind_and_point": all(kinds[kind] for kind in KINDS),
        "wrong_0": bool(ended) and not wrong,
        "stuck_0": bool(ended) and not stuck,
        "commits_by_zombies_0": bool(ended) and not zombies,
        "each_fallback_10_times": all(taken[name] >= FEWEST * wanted / 300 for name in FALLBACKS),
    }
    return {
        "schema": "holdfast.bench.peer-kills/1",
        "kills": results.kills(),
        "kinds": len(KINDS),
        "kills_by_kind": {kind: kinds[kind] for kind in KINDS},
        "points_not_reached": sum(not each.reached for each in struck),
        "gangs": len(ended),
        "starts_compared": sum(each.starts for each in found),
        "fallbacks": {name: taken[name] for name in FALLBACKS},
        "whole_again_s": {"median": seconds[len(seconds) // 2], "worst": seconds[-1]},
        "wrong": len(wrong),
        "commits_by_zombies": len(zombies),
        "stuck": len(stuck),
        "examples": [*wrong[:3], *zombies[:3], *stuck[:3]],
        "goals": goals,
    }


def show(results: Results) -> None:
    print(f"{'a node is lost':22s}{'blows':>6s}{'kills':>6s}{'reached':>8s}  fall-backs taken")
    struck = results.struck()
    for kind in KINDS:
        row = [each for each in struck if each.kind == kind]
        taken = Counter(name for each in row for name in each.taken)
        reached = str(sum(each.reached for each in row)) if kind in (*POINTS, *IN_AN_EPOCH_CHANGE) else ""
        names = ", ".join(f"{name} {times}" for name, times in taken.items())
        print(f"{kind:22s}{len(row):6d}{sum(each.kills for each in row):6d}{reached:>8s}  {names}")


if __name__ == "__main__":
    played(__doc__, Results, play, show, verdict, kills=300)
