"""`python -m workloads.library.tests.fuzz [--seconds S] [--seed N] [--border NAME --case K]`: throw hostile input at every border.

Exit 1: something other than a refusal came back; the input lies below --out, and the line says how to see it again.
"""

import argparse
import sys
from pathlib import Path

from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import campaign, show_again


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--border", choices=sorted(BORDERS))
    parser.add_argument("--case", type=int)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    given = parser.parse_args()
    borders = {given.border: BORDERS[given.border]} if given.border else BORDERS
    if given.case is not None:
        return show_again(borders, given.seed, given.case)
    result = campaign(borders, seconds=given.seconds, seed=given.seed, out=given.out)
    print(result.table())
    for finding in result.findings:
        print(finding.line())
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
