"""`python -m workloads.library.tests.bench.elastic_kills [--kills N] [--seed S] [--minutes M]`: gangs of one to four places, killed at every point.

Deaths at the named points of joining, reporting, proposing, connecting, giving the state, reducing and saving, members
that are frozen and thawed when the others have gone on, and notices. Each gang must end with the bits of one node
that nothing happened to, every shard of every applied step in its sum once, and no commit by a lead that was left
behind. Prints a table, then one JSON line with the goals.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from holdfast.checkpoint.failpoints import GANG_POINTS
from workloads.library.tests.training.elastic.kills import (
    FROZEN,
    SAVE_POINTS,
    SETTINGS,
    Outcome,
    WarmGang,
    plan,
    play,
    prepared,
    undisturbed,
)

STRIKES = 11
SIZES = (1, 2, 3, 4)


def matrix(folder: Path, *, kills: int, seed: int, minutes: float) -> list[tuple[int, Outcome]]:
    until, rng = time.monotonic() + minutes * 60, random.Random(seed)
    prepared()
    reference = undisturbed(folder / "undisturbed")
    played: list[tuple[int, Outcome]] = []
    while sum(len(outcome.struck) for _, outcome in played) < kills and time.monotonic() < until:
        nodes = SIZES[len(played) % len(SIZES)]
        gang = WarmGang(folder / f"gang-{len(played)}", nodes=nodes, **SETTINGS)
        try:
            outcome = play(gang, plan(nodes, STRIKES, rng), reference)
        finally:
            gang.close()
        played.append((nodes, outcome))
        line = f"{sum(len(o.struck) for _, o in played):4d} struck, {nodes} places, {outcome.seconds:.0f} s {outcome.wrong}"
        print(line, file=sys.stderr, flush=True)
    return played


def verdict(played: list[tuple[int, Outcome]], kills: int) -> dict[str, object]:
    struck = Counter(at for _, outcome in played for at in outcome.struck)
    wrong = [each for _, outcome in played for each in outcome.wrong]
    return {
        "schema": "holdfast.bench.elastic-kills/1",
        "kills": struck.total(),
        "gangs": len(played),
        "struck": dict(struck),
        "wrong": [each[:500] for each in wrong[:5]],
        "goals": {
            f"at_least_{kills}_kills": struck.total() >= kills,
            "every_point_hit": set(struck) >= {*GANG_POINTS, *SAVE_POINTS, FROZEN},
            "sizes_one_to_four": {nodes for nodes, _ in played} == {*SIZES},
            "bits_equal_samples_once_none_stuck_no_commit_by_zombies": bool(played) and not wrong,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-elastic-kills-") as folder:
        played = matrix(Path(folder), kills=options.kills, seed=options.seed, minutes=options.minutes)
    result = verdict(played, options.kills)
    print(f"{'point':20s}{'struck':>8s}")
    for at, count in sorted(dict(result["struck"]).items()):  # type: ignore[call-overload]
        print(f"{at:20s}{count:8d}")
    print(json.dumps(result))
    sys.exit(0 if all(dict(result["goals"]).values()) else 1)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
