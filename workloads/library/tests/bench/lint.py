"""1,000 manifests through the linter, in a process of its own; then precision on manifests of
strangers, recall on seeded defects.

lint_labels.json holds findings on the modules that the test tools pin, each compared with its file
by hand: right or not, and why. A finding is right where its sentence holds for that file, applied
as it is. The sample of 100 was drawn once, by rule, with more from rules that find more; labels of
retired rules are removed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.lint.engine import Options, lint
from holdfast.lint.registry import all_rules
from holdfast.lint.rule_pages import example_text
from holdfast.vocabulary.environment import ENV_PLATFORM
from tests import platforms
from workloads.library.tests.bench.result import ended
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.test_foreign_manifests import MODULES, folder

LABELS = Path(__file__).with_name("lint_labels.json")
COUNT = 1_000
GOAL_S = 10.0
FALSE_AT_MOST = 0.05
FOUND_AT_LEAST = 0.95


def write(into: Path) -> None:
    """The rendered files and the rules' examples, over and over: clean and full of findings."""
    rendered = sorted(
        (Path(__file__).parents[4] / "workloads/rendered/example").glob("*/[!k]*.yaml")
    )
    texts = []
    for file in rendered:
        for part in file.read_text().split("---\n"):
            if "kind:" in part:
                texts.append(part)
    texts += [example_text(rule, rule.bad) for rule in all_rules().values() if rule.id < "HF9"]
    for number in range(COUNT):
        (into / f"{number:04}.yaml").write_text(texts[number % len(texts)])


def judged() -> dict[str, Any]:
    """Precision of the judged findings that are still reported, and recall."""
    roots = {module: folder(tool, module) for tool, module in MODULES.items()}
    files = [file for root in roots.values() for file in root.rglob("*.y*ml")]
    report = lint(files, Options(platforms=[platforms.load("prod")]))
    reported = {
        (f"{module}{finding.file.removeprefix(root.as_posix())}", finding.mark.line, finding.rule)
        for finding in report.active
        for module, root in roots.items()
        if finding.file.startswith(f"{root.as_posix()}/")
    }
    labels: list[dict[str, Any]] = json.loads(LABELS.read_text())
    standing = []
    for label in labels:
        if (label["file"], label["line"], label["rule"]) in reported:
            standing.append(label["right"])
    found = [each.found() for each in (*defects.JOBS, *defects.REST)]
    found += [rule in defects.found_in(base, change) for base, change, rule in defects.SINGLE]
    return {
        "strangers_files": report.files,
        "judged": {
            "by hand": len(labels),
            "reported": len(standing),
            "false": standing.count(False),
        },
        "precision": round(1 - standing.count(False) / max(1, len(standing)), 3),
        "recall": sum(found) / len(found),
        "defects": f"{sum(found)} of {len(found)}",
    }


def main() -> None:
    # of all files that no document lies beside
    os.environ[ENV_PLATFORM] = str(platforms.file("example"))
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        began = time.perf_counter()
        holdfast = Path(sys.executable).with_name("holdfast")  # the command that users run
        command = [holdfast, "lint", name, "--json"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    quality = judged()
    goals = {
        "thousand_manifests_under_10_s": seconds < GOAL_S,
        "at_most_5_percent_false": 1 - quality["precision"] <= FALSE_AT_MOST,
        "at_least_95_percent_found": quality["recall"] >= FOUND_AT_LEAST,
    }
    ended(
        {
            "seconds": round(seconds, 2),
            "files": report["files"],
        }
        | quality,
        goals,
    )


if __name__ == "__main__":
    main()
