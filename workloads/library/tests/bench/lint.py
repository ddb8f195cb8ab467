"""1,000 manifests through the linter, in a process of its own; then precision and recall. `python -m workloads.library.tests.bench.lint`."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.contract.environment import ENV_PLATFORM
from holdfast.lint.pages import example_text
from holdfast.lint.registry import all_rules
from tests import platforms
from workloads.library.tests.bench.lint_judged import judged
from workloads.library.tests.bench.result import ended

COUNT, GOAL_S = 1_000, 10.0
FALSE_AT_MOST, FOUND_AT_LEAST = 0.05, 0.95


def write(folder: Path) -> None:
    """The rendered files and the rules' examples, over and over: clean and full of findings."""
    rendered = sorted((Path(__file__).parents[4] / "workloads/rendered/example").glob("*/[!k]*.yaml"))
    texts = [part for file in rendered for part in file.read_text().split("---\n") if "kind:" in part]
    texts += [example_text(rule, rule.bad) for rule in all_rules().values() if rule.id < "HF9"]
    for number in range(COUNT):
        (folder / f"{number:04}.yaml").write_text(texts[number % len(texts)])


def main() -> None:
    os.environ[ENV_PLATFORM] = str(platforms.file("example"))  # of all files that no document lies beside
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        began = time.perf_counter()
        command = [sys.executable, "-m", "holdfast", "lint", str(folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1, done.stderr
    cpu = used.ru_utime + used.ru_stime
    report = json.loads(done.stdout)
    quality = judged()
    goals = {
        "thousand_manifests_under_10_s": seconds < GOAL_S,
        "at_most_5_percent_false": 1 - quality["precision"] <= FALSE_AT_MOST,
        "at_least_95_percent_found": quality["recall"] >= FOUND_AT_LEAST,
    }
    ended({"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "files": report["files"]} | quality, goals)


if __name__ == "__main__":
    main()
