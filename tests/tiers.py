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
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from xml.etree import ElementTree

from holdfast.vocabulary.exit_codes import EXIT_NOT_JUDGED

SLOW = "process or plan or browser or cluster"
# These need root, Docker, a GPU, 6 GB of vLLM or a second provider, and have make targets.
ELSEWHERE = "node or kind or gpu or llm or next_provider"
# The conftest of these folders gives every test its mark.
MARKED_FOLDERS = ("cluster", "node")


@dataclass(frozen=True, kw_only=True)
class Tier:
    marks: str
    workers: int = 0
    """0: one process, for tests that share one machine's kubelets, GPU or kind cluster."""
    options: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    """Each test has one of these marks. Empty: the tier reads every file, except those whose tests
    all have a mark of `none_of`.
    """
    none_of: tuple[str, ...] = ()


# Workers get files in the order of collection, and not by their number of tests.
FILE_BY_FILE = ("--dist=loadfile", "--no-loadscope-reorder")
TIERS = {
    "fast": Tier(
        marks=f"not ({SLOW} or {ELSEWHERE})",
        workers=2,
        none_of=tuple(f"{SLOW} or {ELSEWHERE}".split(" or ")),
    ),
    # Tests wait for signals, leases, starting processes. Another worker would import all files once
    # more.
    "process": Tier(
        marks=f"(process or browser) and not (plan or cluster or {ELSEWHERE})",
        workers=3,
        options=("--dist=worksteal",),
        any_of=("process", "browser"),
    ),
    # Workers wait for the provider. A file's plans are made once, for all its tests.
    "plan": Tier(
        marks=f"plan and not ({ELSEWHERE})",
        workers=3,
        options=FILE_BY_FILE,
        any_of=("plan",),
    ),
    # Each worker has its own control plane, in which a file's tests run one after the other.
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
    "llm": Tier(marks="llm", any_of=("llm",)),
    "next-provider": Tier(marks="next_provider", any_of=("next_provider",)),
}
READ_BY_MARK = frozenset(mark for tier in TIERS.values() for mark in tier.any_of)
# Lanes run in parallel, the tiers of a lane one after the other; both lanes take about as long.
ALL = (("process",), ("fast", "cluster", "plan"))
# The garbage collector of Go's programs, here the provider and the control plane, takes an eighth
# of their time, and there is enough memory.
ENVIRONMENT = {"GOGC": "400"}
SLOWEST = ("--durations=10", "--durations-min=5")
TESTS = Path(__file__).parent
TREES = (TESTS, TESTS.parent / "workloads" / "library" / "tests")
NO_TESTS = 5  # pytest's exit code when a selection is empty
ALL_SKIPPED = -1
REASON_LINES = 12
"""Lines of the end of a failed test's reason in the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one tier."""

    code: int
    """pytest's exit code; ALL_SKIPPED if it passed because no test ran."""
    tests: int
    skipped: int
    failed: int
    seconds: float
    failures: tuple[str, ...] = ()
    """Each failed test: its name, and the beginning and end of the reason."""

    def __str__(self) -> str:
        counts = (
            f"{self.tests - self.skipped - self.failed:,} passed, {self.failed} failed,"
            f" {self.skipped} skipped"
        )
        return f"{counts} in {self.seconds / 60:.1f} min"


def run(name: str, extra: list[str], *, alone: bool = True) -> Outcome:
    """Run a tier. Unless it is `alone`, its output is printed at the end."""
    tier = TIERS[name]
    title = f"\n== tier {name}"
    header = f"{title}: pytest -m {tier.marks!r}"
    print(f"{header if alone else title} ({time.strftime('%X')})", flush=True)
    parallel = ["-n", str(tier.workers)] if tier.workers else ["-p", "no:xdist"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            tier.marks,
            *parallel,
            *tier.options,
            *SLOWEST,
            f"--junitxml={report}",
            *extra,
        ]
        process = subprocess.run(
            command,
            env=ENVIRONMENT | os.environ,
            text=True,
            stdout=None if alone else PIPE,
            stderr=None if alone else STDOUT,
            check=False,
        )
        outcome = read_outcome(process.returncode, report, time.monotonic() - start)
    output = "" if alone else f"{header}\n{process.stdout}\n"
    print(f"{output}== tier {name}: exit {process.returncode}, {outcome}", flush=True)
    return outcome


def run_lanes(lanes: Sequence[Sequence[str]], extra: list[str]) -> dict[str, Outcome]:
    """Run all lanes and return tier -> outcome. The first lane prints while it runs."""

    def run_lane(lane: Sequence[str]) -> dict[str, Outcome]:
        return {name: run(name, extra, alone=lane is lanes[0]) for name in lane}

    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor() as pool:
        for outcomes_of_lane in pool.map(run_lane, lanes):
            outcomes |= outcomes_of_lane
    return outcomes


def has_mark(file: Path, marks: Collection[str]) -> bool:
    """Tell whether the file names one of `marks`, or is in a folder of that name."""
    if not set(marks).isdisjoint(file.parts):
        return True
    text = file.read_text()
    return any(f"mark.{mark}" in text for mark in marks)


def may_hold(file: Path, expression: str) -> bool:
    """Tell whether `file` may have tests of the tier with `-m expression`; true for any other
    expression.
    """
    for tier in TIERS.values():
        if tier.marks == expression:
            may_have_mark = file.is_dir() or not tier.any_of or has_mark(file, tier.any_of)
            return may_have_mark and not is_wholly(file, tier.none_of)
    return True


def is_wholly(file: Path, marks: Collection[str]) -> bool:
    """Tell whether all tests of the file, or of the folder, have one of `marks`: by `pytestmark`,
    or by its folder.
    """
    for folder in MARKED_FOLDERS:
        for tree in TREES:
            if folder in marks and tree / folder in (file, *file.parents):
                return True
    if file.is_dir():
        return False
    assignment = re.search(r"^pytestmark = (.*)$", file.read_text(), re.M)
    if assignment is None:
        return False
    return not set(marks).isdisjoint(re.findall(r"\bmark\.(\w+)", assignment[1]))


def deal(tests: Sequence[tuple[Path, bool]], workers: int) -> list[int]:
    """Return the order in which to run `tests`, for shares as --dist=worksteal cuts them. A test is
    its file, and whether it may take long.

    A file with a long test starts a share: if it came late, it would leave the other workers idle.
    Those of a folder are together, since a worker prepares for them once.
    """
    slow_files = {file for file, is_slow in tests if is_slow}
    folders = sorted({file.parent for file in slow_files})
    rest = [index for index, (file, _) in enumerate(tests) if file not in slow_files]
    order: list[int] = []
    for worker in range(workers):
        end = len(order) + (len(tests) - len(order)) // (workers - worker)
        worker_folders = folders[worker::workers]
        for index, (file, _) in enumerate(tests):
            if file in slow_files and file.parent in worker_folders:
                order.append(index)
        fill = max(0, end - len(order))
        order = order + rest[:fill]
        rest = rest[fill:]
    return order


def read_outcome(code: int, report: Path, seconds: float) -> Outcome:
    """Combine pytest's exit code with its report, which is missing if pytest ended before its first
    test.
    """
    suites = list(ElementTree.parse(report).getroot().iter("testsuite")) if report.exists() else []
    counts: Counter[str] = Counter()
    failures = []
    for suite in suites:
        for count in ("tests", "skipped", "failures", "errors"):
            counts[count] += int(suite.get(count, "0"))
        for test in suite.iter("testcase"):
            for failure in (*test.iter("failure"), *test.iter("error")):
                reason = shorten(failure.get("message") or "")
                failures.append(f"{test.get('classname')}::{test.get('name')}: {reason}")
    if code == 0 and counts["tests"] == counts["skipped"]:
        code = ALL_SKIPPED
    return Outcome(
        code=code,
        tests=counts["tests"],
        skipped=counts["skipped"],
        failed=counts["failures"] + counts["errors"],
        seconds=seconds,
        failures=tuple(failures),
    )


def shorten(reason: str) -> str:
    """Return the first line and the last ones: after a vain wait, a reason ends with logs."""
    first, *later_lines = reason.splitlines() or [""]
    return "\n    ".join([first, *later_lines[-REASON_LINES:]])


def main(arguments: list[str]) -> int:
    names = arguments[:1] or ["all"]
    extra = arguments[1:]
    if names != ["all"] and names[0] not in TIERS:
        sys.exit(
            f"error:   unknown tier\n  got:     {names[0]}\n  allowed: all, {', '.join(TIERS)}\n "
            " fix:     name one"
        )
    outcomes = run_lanes(ALL if names == ["all"] else [names], extra)
    return summarize(outcomes)


def summarize(outcomes: dict[str, Outcome]) -> int:
    """Print the outcomes, and return the exit code."""
    print(flush=True)
    idle = []
    failed = []
    for name, outcome in outcomes.items():
        print(f"{name:9}{outcome}", flush=True)
        if outcome.code == ALL_SKIPPED:
            idle.append(name)
        elif outcome.code:
            failed.append(f"{name} (no tests)" if outcome.code == NO_TESTS else name)
    # Failures come last, since a log may be cut at its beginning.
    for outcome in outcomes.values():
        for line in outcome.failures:
            print(f"failed: {line}", flush=True)
    if idle:
        print(
            f"tiers that could not run here, for the reasons above: {', '.join(idle)}", flush=True
        )
    if len(idle) == len(outcomes):
        return EXIT_NOT_JUDGED
    suffix = " (CI)" if os.environ.get("CI") else ""
    print(f"tiers failed: {', '.join(failed) or 'none'}{suffix}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
