"""`python -m workloads.library.tests.mutants [NAME...]`: break the product in one place at a time;
named tests must fail each time.

Works in copies of the tree. First the tests run on an unbroken copy: what fails anyway kills
nothing. Exit: 0 all killed, 1 a survivor, 2 no such mutant, 3 a mutant that could not be judged,
such as one that breaks the import.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from holdfast.support.errors import InputError, Unjudged, run_cli
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED

ROOT = Path(__file__).parents[4]
LIMIT_S = 600
"""A test that hangs fails by its own limit, which is shorter."""
UNBROKEN = "unbroken"
# pytest's exit codes; any other means that it judged nothing
FAILED = 1
ALL_PASSED = 0
TOO_LONG = -1


class Fate(StrEnum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    NOT_JUDGED = "NOT JUDGED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One deliberate fault: a text of the product replaced by another, and the tests that must
    notice.
    """

    name: str
    """What the product now does wrong."""
    file: str
    old: str
    """Occurs in the file exactly once."""
    new: str
    tests: list[str]
    """Of pytest, each fast; the first that fails ends the run."""

    def mutate(self, text: str) -> str:
        """Returns the text with the fault. Raises ValueError if the text lacks the place: the list
        must follow the product.
        """
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r}, 1 is"
                " wanted"
            )
        return text.replace(self.old, self.new)

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        text = self.mutate(path.read_text())
        path.unlink()  # the copy is made of hard links: writing in place would change all of them
        path.write_text(text)


TABLE = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())
MUTANTS = [Mutant(**row) for row in TABLE["mutant"]]


def snapshot(into: Path) -> None:
    """Copies what git tracks or would track, so that later edits of the tree change no verdict."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        target = into / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def main() -> None:
    parser = argparse.ArgumentParser(prog="workloads.library.tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    # A shell that starts this in the background has it ignored, and every process of the tests
    # would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(judge(choose(given.names), given.jobs))


def choose(names: Sequence[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            "no such mutant",
            got=unknown[0],
            allowed=", ".join(known),
            fix="leave it out for all",
        )
    return [known[name] for name in names] or MUTANTS


def judge(mutants: Sequence[Mutant], jobs: int) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as scratch:
        snapshot(Path(scratch) / UNBROKEN)
        require_green(mutants, Path(scratch))
        with ThreadPoolExecutor(jobs) as pool:
            fates = [*pool.map(partial(judge_mutant, scratch=Path(scratch)), mutants)]
    print(
        f"{fates.count(Fate.KILLED)} of {len(fates)} mutants killed after"
        f" {time.monotonic() - began:.0f} s"
    )
    if Fate.SURVIVED in fates:
        return EXIT_FINDINGS
    return EXIT_NOT_JUDGED if Fate.NOT_JUDGED in fates else EXIT_DONE


def require_green(mutants: Sequence[Mutant], scratch: Path) -> None:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code, output = run_tests(tests, scratch / UNBROKEN)
    if code != ALL_PASSED:
        raise Unjudged(f"the tests fail without a mutant:\n{output[-3000:]}")


def judge_mutant(mutant: Mutant, scratch: Path) -> Fate:
    """Runs the tests of one mutant and prints its fate, with their output if it was not killed."""
    began = time.monotonic()
    tree = scratch / mutant.name.replace(" ", "-")
    shutil.copytree(scratch / UNBROKEN, tree, copy_function=os.link)
    mutant.apply(tree)
    code, output = run_tests(mutant.tests, tree)
    fate = {FAILED: Fate.KILLED, ALL_PASSED: Fate.SURVIVED}.get(code, Fate.NOT_JUDGED)
    print(
        f"{fate:<10} {time.monotonic() - began:5.1f} s  {mutant.name} ({mutant.file})", flush=True
    )
    if fate is not Fate.KILLED:
        print(output[-1500:], file=sys.stderr, flush=True)
    return fate


def run_tests(tests: Sequence[str], tree: Path) -> tuple[int, str]:
    """Returns code and output of pytest on the copy, whose folders precede the installed ones.
    Skipped tests count as not run.
    """
    paths = os.pathsep.join([str(tree / "workloads" / "library"), str(tree)])
    environment = os.environ | {
        "PYTHONPATH": paths,
        "CI": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        *tests,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (
            TOO_LONG,
            f"still running after {LIMIT_S} s: too much else runs here, or a test hangs",
        )
    return done.returncode, done.stdout


if __name__ == "__main__":
    run_cli(main)
