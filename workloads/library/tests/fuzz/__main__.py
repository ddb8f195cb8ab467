"""`python -m workloads.library.tests.fuzz [--seconds S] [--seed N] [--border NAME --case K]`: throw
hostile input at every border, for so many seconds of CPU.

Exit 1: something other than a refusal came back. `--border` and `--case` enter one input again,
with its traceback.
"""

import sys

from workloads.library.tests.bench.result import options
from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import campaign, made


def main() -> None:
    o = options(
        __doc__,
        seconds=60.0,
        seed=20,
        border=(*sorted(BORDERS),),
        case=-1,
    )
    borders = {name: BORDERS[name] for name in o.border}
    if o.case >= 0:
        for name, border in borders.items():
            border.enter(made(border, o.seed, name, o.case))
        return
    results = campaign(borders, cpu_s=o.seconds, seed=o.seed)
    for name, result in results.items():
        print(f"{name:<24}{result.cases:>9} inputs{result.refused:>9} refused")
        for place, what in result.findings.items():
            print(f"  {what} at {place} (--seed {o.seed})")
    sys.exit(any(result.findings for result in results.values()))


if __name__ == "__main__":
    main()
