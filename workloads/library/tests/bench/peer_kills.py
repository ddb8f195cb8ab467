"""`python -m workloads.library.tests.bench.peer_kills [--kills N] [--seed S]`: kill nodes of
sharded gangs, alone and together, at random moments and at each named point.

Four nodes as processes with a small state. A gang is struck until it has done its steps, then the
next one begins, three gangs at a time. The bits of each restore and of each end are held against
those of a run that nothing disturbed.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.kinds import KINDS, endless
from workloads.library.tests.bench.gangs.play import FALLBACKS, Found, Lane, Struck, undisturbed
from workloads.library.tests.bench.kill_lane import Records, played, share, side_by_side

LANES = 3
FEWEST = 10
"""Times that each fall-back must have been taken, of 300 kills."""


def taken(struck: list[Struck]) -> dict[str, int]:
    """How often each fall-back was taken."""
    found = Counter(name for each in struck for name in each.taken)
    return {name: found[name] for name in FALLBACKS}


def killed(struck: list[Struck]) -> int:
    return sum(each.kills for each in struck)


def enough(struck: list[Struck], kills: int) -> bool:
    fewest = FEWEST * kills / 300
    return killed(struck) >= kills and all(times >= fewest for times in taken(struck).values())


def play(folder: Path, results: Records, *, kills: int, seed: int) -> None:
    reference = undisturbed(folder / "undisturbed")

    def lane(number: int) -> None:
        (own := folder / f"lane-{number}").mkdir()
        mine = share(endless(seed), number, LANES, lambda: enough(results.of(Struck), kills))
        Lane(folder=own, reference=reference, results=results).play(mine)

    side_by_side(LANES, lane)


def verdict(results: Records, wanted: int) -> dict[str, Any]:
    struck = results.of(Struck)
    ended = results.of(Found)
    found = [*struck, *ended]
    wrong = [text[:2000] for each in found for text in each.wrong]
    zombies = [text for each in found for text in each.zombies]
    stuck = [each.stuck[:2000] for each in ended if each.stuck]
    fallbacks = taken(struck)
    kinds = Counter[str]()
    for each in struck:
        kinds[each.kind] += each.kills if each.reached else 0
    goals = {
        f"at_least_{wanted}_kills": killed(struck) >= wanted,
        "every_kind_and_point": all(kinds[kind] for kind in KINDS),
        "wrong_0": bool(ended) and not wrong,
        "stuck_0": bool(ended) and not stuck,
        "commits_by_zombies_0": bool(ended) and not zombies,
        "each_fallback_10_times": min(fallbacks.values()) >= FEWEST * wanted / 300,
    }
    return {
        "schema": "holdfast.bench.peer-kills/1",
        "kills": killed(struck),
        "kills_by_kind": {kind: kinds[kind] for kind in KINDS},
        "gangs": len(ended),
        "starts_compared": sum(each.starts for each in found),
        "fallbacks": fallbacks,
        "wrong": len(wrong),
        "commits_by_zombies": len(zombies),
        "stuck": len(stuck),
        "examples": [*wrong[:3], *zombies[:3], *stuck[:3]],
        "goals": goals,
    }


if __name__ == "__main__":
    played(__doc__, play, verdict, kills=300)
