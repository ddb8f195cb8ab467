"""`python -m tests.tiers all|fast|process|plan|...`: runs tiers and sums them up.

A tier is a pytest selection; the split keeps processes and control planes out of `fast`. All tiers run even if one fails. Exit 3: not a
single test could run here.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from xml.etree import ElementTree

from holdfast.contract.exit_codes import EXIT_NOT_JUDGED

SLOW = "process or plan or browser or cluster"
ELSEWHERE = "node or kind or gpu or cloud"  # need root, Docker, a GPU, a project: their own make targets


@dataclass(frozen=True, kw_only=True)
class Tier:
    marks: str
    workers: int = 0
    """0: one process, for tests that share one control plane."""
    options: tuple[str, ...] = ()


TIERS = {
    "fast": Tier(marks=f"not ({SLOW} or {ELSEWHERE})", workers=2),
    # Most of it waits: for signals, leases, processes that start. The longest tests stand together, at the end.
    "process": Tier(
        marks=f"(process or browser) and not (plan or cluster or {ELSEWHERE})",
        workers=4,
        options=("--dist=worksteal",),
    ),
    # Most of it waits for the provider, which waits for Google's habits; a file's plans are made once, for all its tests.
    "plan": Tier(marks=f"plan and not ({ELSEWHERE})", workers=2, options=("--dist=loadfile",)),
    "cluster": Tier(marks=f"cluster and not ({ELSEWHERE})"),
    "node": Tier(marks="node"),
    "kind": Tier(marks="cluster or kind", options=("--k8s-provider=kind",)),
    "gpu": Tier(marks="gpu"),
    "cloud": Tier(marks="cloud"),
}
# Side by side those that mostly wait: the one for its provider, the other for controllers.
ALL = (("fast",), ("process",), ("plan", "cluster"))
SLOWEST = ("--durations=10", "--durations-min=5")
NO_TESTS = 5  # pytest's exit code when a selection is empty
ALL_SKIPPED = -1


def run(name: str, extra: list[str], *, alone: bool = True) -> int:
    """pytest's exit code; ALL_SKIPPED where it passed for that only. Beside another, its output comes in one piece."""
    tier = TIERS[name]
    opening = f"\n== tier {name}"
    header = f"{opening}: pytest -m {tier.marks!r}"
    print(f"{header if alone else opening} ({time.strftime('%X')})", flush=True)
    parallel = ["-n", str(tier.workers)] if tier.workers else ["-p", "no:xdist"]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [*parallel, *tier.options, *SLOWEST, f"--junitxml={report}", *extra]
        command = [sys.executable, "-m", "pytest", "-q", "-m", tier.marks, *options]
        ended = subprocess.run(command, text=True, **({} if alone else {"stdout": PIPE, "stderr": STDOUT}))
        code = ALL_SKIPPED if ended.returncode == 0 and _all_skipped(report) else ended.returncode
    outcome = "all skipped" if code == ALL_SKIPPED else f"exit {code}"
    shown = "" if alone else f"{header}\n{ended.stdout}\n"
    print(f"{shown}== tier {name}: {outcome} after {time.monotonic() - started:.0f} s", flush=True)
    return code


def run_beside(names: Sequence[str], extra: list[str]) -> dict[str, int]:
    with ThreadPoolExecutor() as pool:
        codes = pool.map(lambda name: run(name, extra, alone=len(names) == 1), names)
        return dict(zip(names, codes, strict=True))


def _all_skipped(report: Path) -> bool:
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    return all(suite.get("tests") == suite.get("skipped") for suite in suites)


def main(arguments: list[str]) -> int:
    names, extra = arguments[:1] or ["all"], arguments[1:]
    if names != ["all"] and names[0] not in TIERS:
        sys.exit(
            f"error:   unknown tier\n  got:     {names[0]}\n  allowed: all, {', '.join(TIERS)}\n  fix:     name one"
        )
    codes: dict[str, int] = {}
    for group in ALL if names == ["all"] else [(name,) for name in names]:
        codes |= run_beside(group, extra)
    idle = [name for name, code in codes.items() if code == ALL_SKIPPED]
    if idle:
        print(f"tiers that could not run here, for the reasons above: {', '.join(idle)}", flush=True)
    if idle == [*codes]:
        return EXIT_NOT_JUDGED
    failed = [
        f"{name} (no tests)" if code == NO_TESTS else name for name, code in codes.items() if code and name not in idle
    ]
    print(f"tiers failed: {', '.join(failed) or 'none'}{' (CI)' if os.environ.get('CI') else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
