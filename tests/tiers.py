"""`python -m tests.tiers all|fast|process|plan|...`: runs tiers and sums them up.

A tier is a pytest selection; the split keeps processes and control planes out of `fast`. All tiers
run even if one fails. Exit 3: not a single test could run here.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from xml.etree import ElementTree

from holdfast.vocabulary.exit_codes import EXIT_NOT_JUDGED

SLOW = "process or plan or browser or cluster"
ELSEWHERE = "node or kind or gpu"  # need root, Docker, a GPU: their own make targets
# Whose conftest gives every test its mark.
MARKED_FOLDERS = ("cluster", "node")


@dataclass(frozen=True, kw_only=True)
class Tier:
    marks: str
    workers: int = 0
    """0: one process, for tests that share one machine's kubelets, GPU or kind cluster."""
    options: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    """Marks of which each of its tests has one; none: it reads every file that has not one of
    `none_of` as a whole.
    """
    none_of: tuple[str, ...] = ()


# Files are handed out in the order in which they were collected, and not by how many tests they
# have.
FILE_BY_FILE = ("--dist=loadfile", "--no-loadscope-reorder")
TIERS = {
    "fast": Tier(
        marks=f"not ({SLOW} or {ELSEWHERE})",
        workers=2,
        none_of=tuple(f"{SLOW} or {ELSEWHERE}".split(" or ")),
    ),
    # Some of it waits: for signals, leases, processes that start. Each worker more imports all of
    # its files once more.
    "process": Tier(
        marks=f"(process or browser) and not (plan or cluster or {ELSEWHERE})",
        workers=3,
        options=("--dist=worksteal",),
        any_of=("process", "browser"),
    ),
    # One worker waits for the provider, which waits for Google's habits; a file's plans are made
    # once, for all its tests.
    "plan": Tier(
        marks=f"plan and not ({ELSEWHERE})",
        workers=3,
        options=FILE_BY_FILE,
        any_of=("plan",),
    ),
    # Each worker has a control plane of its own, in which a file's tests follow each other.
    "cluster": Tier(
        marks=f"cluster and not ({ELSEWHERE})",
        workers=2,
        options=FILE_BY_FILE,
        any_of=("cluster",),
    ),
    "node": Tier(marks="node", any_of=("node",)),
    "kind": Tier(
        marks="cluster or kind",
        options=("--k8s-provider=kind",),
        any_of=("cluster", "kind"),
    ),
    "gpu": Tier(marks="gpu", any_of=("gpu",)),
}
READ_BY_MARK = frozenset(mark for tier in TIERS.values() for mark in tier.any_of)
# Lanes run side by side, the tiers of a lane one after the other; both take about as long.
ALL = (("process",), ("fast", "cluster", "plan"))
# The collector of Go's programs, here the provider and the control plane, takes an eighth of their
# time, and memory is there.
ENVIRONMENT = {"GOGC": "400"}
SLOWEST = ("--durations=10", "--durations-min=5")
TESTS = Path(__file__).parent
TREES = (TESTS, TESTS.parent / "workloads" / "library" / "tests")
NO_TESTS = 5  # pytest's exit code when a selection is empty
ALL_SKIPPED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one tier."""

    code: int
    """pytest's exit code; ALL_SKIPPED where it passed for that only."""
    tests: int
    skipped: int
    failed: int
    seconds: float
    failures: tuple[str, ...] = ()
    """A line for each failed test: its name, and the first line of why."""

    def __str__(self) -> str:
        counts = (
            f"{self.tests - self.skipped - self.failed:,} passed, {self.failed} failed,"
            f" {self.skipped} skipped"
        )
        return f"{counts} in {self.seconds / 60:.1f} min"


def run(name: str, extra: list[str], *, alone: bool = True) -> Outcome:
    """Not `alone`: its output comes in one piece."""
    tier = TIERS[name]
    opening = f"\n== tier {name}"
    header = f"{opening}: pytest -m {tier.marks!r}"
    print(f"{header if alone else opening} ({time.strftime('%X')})", flush=True)
    parallel = ["-n", str(tier.workers)] if tier.workers else ["-p", "no:xdist"]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [
            *parallel,
            *tier.options,
            *SLOWEST,
            f"--junitxml={report}",
            *extra,
        ]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            tier.marks,
            *options,
        ]
        ended = subprocess.run(
            command,
            env=ENVIRONMENT | os.environ,
            text=True,
            **({} if alone else {"stdout": PIPE, "stderr": STDOUT}),
        )
        outcome = judged(ended.returncode, report, time.monotonic() - started)
    shown = "" if alone else f"{header}\n{ended.stdout}\n"
    print(f"{shown}== tier {name}: exit {ended.returncode}, {outcome}", flush=True)
    return outcome


def run_lanes(lanes: Sequence[Sequence[str]], extra: list[str]) -> dict[str, Outcome]:
    """By tier. The first lane is shown as it goes."""

    def outcomes(lane: Sequence[str]) -> dict[str, Outcome]:
        return {name: run(name, extra, alone=lane is lanes[0]) for name in lane}

    with ThreadPoolExecutor() as pool:
        return {
            name: outcome for lane in pool.map(outcomes, lanes) for name, outcome in lane.items()
        }


def has_mark(file: Path, marks: Collection[str]) -> bool:
    """Whether one of `marks` is given in the file, or to all of its folder."""
    return not set(marks).isdisjoint(file.parts) or any(
        f"mark.{mark}" in file.read_text() for mark in marks
    )


def may_hold(file: Path, expression: str) -> bool:
    """Whether `file` may have tests of the tier that `-m expression` stands for; true for any other
    expression.
    """
    for tier in TIERS.values():
        if tier.marks == expression:
            named = file.is_dir() or not tier.any_of or has_mark(file, tier.any_of)
            return named and not is_wholly(file, tier.none_of)
    return True


def is_wholly(file: Path, marks: Collection[str]) -> bool:
    """Whether all tests of the file, or of the folder, have one of `marks`: by its `pytestmark`, or
    by its folder.
    """
    if any(
        folder in marks and tree / folder in (file, *file.parents)
        for folder in MARKED_FOLDERS
        for tree in TREES
    ):
        return True
    if file.is_dir():
        return False
    given = re.search(r"^pytestmark = (.*)$", file.read_text(), re.M)
    return bool(given and set(re.findall(r"\bmark\.(\w+)", given[1])) & set(marks))


def dealt(tests: Sequence[tuple[Path, bool]], workers: int) -> list[int]:
    """The order to run `tests` in, each given by its file and whether it may take long: shares as
    --dist=worksteal cuts them.

    A file with a long test stands at the begin of a share, for met late it would leave the other
    workers idle. Those of a folder stand together, for what they set up once a worker.
    """
    long = {file for file, may_take_long in tests if may_take_long}
    folders = sorted({file.parent for file in long})
    rest = [place for place, (file, _) in enumerate(tests) if file not in long]
    order: list[int] = []
    for worker in range(workers):
        end = len(order) + (len(tests) - len(order)) // (workers - worker)
        own = {file for file in long if file.parent in folders[worker::workers]}
        order += [place for place, (file, _) in enumerate(tests) if file in own]
        fill = max(0, end - len(order))
        order = order + rest[:fill]
        rest = rest[fill:]
    return order


def judged(code: int, report: Path, seconds: float) -> Outcome:
    """By pytest's exit code and its report, which is not there if it ended before its first test."""
    suites = [*ElementTree.parse(report).getroot().iter("testsuite")] if report.exists() else []
    tests, skipped, failures, errors = (
        sum(int(suite.get(count, "0")) for suite in suites)
        for count in ("tests", "skipped", "failures", "errors")
    )
    known = ALL_SKIPPED if code == 0 and tests == skipped else code
    why = tuple(
        f"{test.get('classname')}::{test.get('name')}:"
        f" {' '.join((found.get('message') or '').splitlines()[:1])}"
        for suite in suites
        for test in suite.iter("testcase")
        for found in (*test.iter("failure"), *test.iter("error"))
    )
    return Outcome(
        code=known,
        tests=tests,
        skipped=skipped,
        failed=failures + errors,
        seconds=seconds,
        failures=why,
    )


def main(arguments: list[str]) -> int:
    names = arguments[:1] or ["all"]
    extra = arguments[1:]
    if names != ["all"] and names[0] not in TIERS:
        sys.exit(
            f"error:   unknown tier\n  got:     {names[0]}\n  allowed: all, {', '.join(TIERS)}\n "
            " fix:     name one"
        )
    outcomes = run_lanes(ALL if names == ["all"] else [names], extra)
    codes = {name: outcome.code for name, outcome in outcomes.items()}
    print(
        *("", *(f"{name:9}{outcome}" for name, outcome in outcomes.items())), sep="\n", flush=True
    )
    # Last, where a log that was cut still has it.
    for outcome in outcomes.values():
        for line in outcome.failures:
            print(f"failed: {line}", flush=True)
    idle = [name for name, code in codes.items() if code == ALL_SKIPPED]
    if idle:
        print(
            f"tiers that could not run here, for the reasons above: {', '.join(idle)}", flush=True
        )
    if idle == [*codes]:
        return EXIT_NOT_JUDGED
    failed = [
        f"{name} (no tests)" if code == NO_TESTS else name
        for name, code in codes.items()
        if code and name not in idle
    ]
    print(
        f"tiers failed: {', '.join(failed) or 'none'}{' (CI)' if os.environ.get('CI') else ''}",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
