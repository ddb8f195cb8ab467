"""Give hostile input to every border for some seconds of CPU time.

    python -m workloads.library.tests.fuzz [--seconds S] [--seed N] [--border NAME --case K]

Exits 1 if a border failed otherwise than by a refusal. `--border` and `--case` repeat one input,
with its traceback.
"""

import sys

from workloads.library.tests.bench.result import options
from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import campaign, make_input


def main() -> None:
    arguments = options(
        __doc__,
        seconds=60.0,
        seed=20,
        border=(*sorted(BORDERS),),
        case=-1,
    )
    seed = arguments.seed
    borders = {name: BORDERS[name] for name in arguments.border}
    if arguments.case >= 0:
        for name, border in borders.items():
            border.enter(make_input(border, seed, name, arguments.case))
        return
    results = campaign(borders, cpu_s=arguments.seconds, seed=seed)
    for name, result in results.items():
        print(f"{name:<24}{result.cases:>9} inputs{result.refused:>9} refused")
        for place, finding in result.findings.items():
            print(f"  {finding} at {place} (--seed {seed})")
    sys.exit(any(result.findings for result in results.values()))


if __name__ == "__main__":
    main()
