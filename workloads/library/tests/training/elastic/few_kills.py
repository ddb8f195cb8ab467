"""`python -m workloads.library.tests.training.elastic.few_kills FOLDER`: the drills of a gang, and what came of each.

A process of its own: places are forked from it, and a fork takes along one thread only. All drills share its start-up.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from workloads.library.tests.training.elastic.kills import SETTINGS, Strike, WarmGang, play, prepared, undisturbed

STEP = 30
DRILLS = {
    "one": [Strike(at="gang.reduce", place=2, count=STEP)],
    "two": [Strike(at="gang.reduce", place=1, count=STEP), Strike(at="gang.reduce", place=2, count=STEP)],
    "rank 0": [Strike(at="gang.reduced", place=0, count=STEP)],
    "all": [Strike(at="gang.reduce", place=place, count=STEP) for place in range(3)],
    "during a grow": [
        Strike(at="gang.reduce", place=2, count=STEP),
        Strike(at="gang.join", place=2),
        Strike(at="gang.synchronize", place=2),
    ],
    "during a save": [Strike(at="stage.end", place=0), Strike(at="stage.begin", place=0)],
    "at many points": [
        Strike(at="gang.connect", place=1),
        Strike(at="gang.reduced", place=0, count=9),
        Strike(at="gang.proposed", place=0),
        Strike(at="gang.report", place=2),
        Strike(at="gang.join", place=2),
        Strike(at="gang.synchronize", place=1),
        Strike(at="stage.end", place=0),
    ],
}


def main(folder: Path) -> None:
    prepared()
    reference = undisturbed(folder / "undisturbed")
    for number, (name, strikes) in enumerate(DRILLS.items()):
        gang = WarmGang(folder / str(number), nodes=3, **SETTINGS)
        try:
            outcome = play(gang, strikes, reference)
        finally:
            gang.close()
        print(json.dumps({"drill": name, "sizes": gang.sizes()} | asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
