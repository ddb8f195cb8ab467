"""`python -m workloads.library.tests.fuzz [--seconds S] [--seed N] [--border NAME --case K]`: throw hostile input at every border.

Exit 1: something other than a refusal came back. `--border` and `--case` enter one input again, with its traceback.
"""

import argparse
import sys

from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import campaign, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="Of CPU time.")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--border", choices=sorted(BORDERS))
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    borders = {given.border: BORDERS[given.border]} if given.border else BORDERS
    if given.case is not None:
        for name, border in borders.items():
            border.enter(made(border, given.seed, name, given.case))
        return
    results = campaign(borders, cpu_s=given.seconds, seed=given.seed)
    for name, result in results.items():
        print(f"{name:<24}{result.cases:>9} inputs{result.refused:>9} refused")
        for place, what in result.findings.items():
            print(f"  {what} at {place} (--seed {given.seed})")
    sys.exit(any(result.findings for result in results.values()))


if __name__ == "__main__":
    main()
