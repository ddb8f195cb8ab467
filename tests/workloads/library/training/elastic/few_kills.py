"""`python -m tests.workloads.library.training.elastic.few_kills FOLDER`: some kills of a gang, and what came of them.

A process of its own: places are forked from it, and a fork takes along one thread only.
"""

import json
import sys
from pathlib import Path

from tests.workloads.library.training.elastic.kills import SETTINGS, Strike, WarmGang, play, prepared, undisturbed

STRIKES = [
    Strike(at="gang.connect", place=1),
    Strike(at="gang.reduced", place=0, count=9),
    Strike(at="gang.proposed", place=0),
    Strike(at="gang.report", place=2),
    Strike(at="gang.join", place=2),
    Strike(at="gang.synchronize", place=1),
    Strike(at="stage.end", place=0),
]


def main(folder: Path) -> None:
    prepared()
    reference = undisturbed(folder / "undisturbed")
    gang = WarmGang(folder / "gang", nodes=3, **SETTINGS)
    try:
        outcome = play(gang, STRIKES, reference)
    finally:
        gang.close()
    print(json.dumps({"wrong": outcome.wrong, "struck": outcome.struck}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
