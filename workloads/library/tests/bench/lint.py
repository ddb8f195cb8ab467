"""The linter on 1,000 manifests in its own process, then its precision and its recall.

Precision is measured on manifests of other projects, recall on seeded defects. lint_labels.json
holds findings on the modules that the test tools pin, each compared with its file by hand: right or
not, and why. A finding is right if its sentence is true of the file as it is. The sample of 100 was
drawn once, by rule, with more from rules that find more; labels of retired rules are removed.
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
from holdfast.lint.rule_pages import format_example
from holdfast.vocabulary.environment import ENV_PLATFORM
from tests import platforms
from workloads.library.tests.bench.result import finish
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.test_foreign_manifests import MODULES, folder

LABELS = Path(__file__).with_name("lint_labels.json")
COUNT = 1_000
GOAL_S = 10.0
FALSE_AT_MOST = 0.05
FOUND_AT_LEAST = 0.95


def write(into: Path) -> None:
    """Writes rendered manifests, which are clean, and bad examples of the rules, in rotation."""
    rendered = Path(__file__).parents[4] / "workloads/rendered/example"
    texts = []
    for file in sorted(rendered.glob("*/[!k]*.yaml")):
        documents = file.read_text().split("---\n")
        texts += [document for document in documents if "kind:" in document]
    for rule in all_rules().values():
        if rule.id < "HF9":
            texts.append(format_example(rule, rule.bad))
    for number in range(COUNT):
        text = texts[number % len(texts)]
        (into / f"{number:04}.yaml").write_text(text)


def measure_quality() -> dict[str, Any]:
    """Returns precision over the labels that are still reported, and recall over the defects."""
    roots = {}
    for tool, module in MODULES.items():
        roots[module] = folder(tool, module)
    files = list[Path]()
    for root in roots.values():
        files += root.rglob("*.y*ml")
    report = lint(files, Options(platforms=[platforms.load("prod")]))
    reported = set[tuple[str, int, str]]()
    for finding in report.active:
        for module, root in roots.items():
            if finding.file.startswith(f"{root.as_posix()}/"):
                file = module + finding.file.removeprefix(root.as_posix())
                reported.add((file, finding.mark.line, finding.rule))
    labels: list[dict[str, Any]] = json.loads(LABELS.read_text())
    verdicts = list[bool]()
    for label in labels:
        if (label["file"], label["line"], label["rule"]) in reported:
            verdicts.append(label["right"])
    false = verdicts.count(False)
    detections = []
    for defect in (*defects.JOBS, *defects.REST):
        detections.append(defect.found())
    for base, change, rule in defects.SINGLE:
        detections.append(rule in defects.find_rules_in_change(base, change))
    return {
        "strangers_files": report.files,
        "judged": {
            "by hand": len(labels),
            "reported": len(verdicts),
            "false": false,
        },
        "precision": round(1 - false / max(1, len(verdicts)), 3),
        "recall": sum(detections) / len(detections),
        "defects": f"{sum(detections)} of {len(detections)}",
    }


def main() -> None:
    # The platform of all files that have no document in their folder.
    os.environ[ENV_PLATFORM] = str(platforms.file("example"))
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        start = time.perf_counter()
        holdfast = Path(sys.executable).with_name("holdfast")  # the command that users run
        command = [holdfast, "lint", name, "--json"]
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
    assert process.returncode == 1, process.stderr
    report = json.loads(process.stdout)
    quality = measure_quality()
    goals = {
        "thousand_manifests_under_10_s": seconds < GOAL_S,
        "at_most_5_percent_false": 1 - quality["precision"] <= FALSE_AT_MOST,
        "at_least_95_percent_found": quality["recall"] >= FOUND_AT_LEAST,
    }
    figures = {
        "seconds": round(seconds, 2),
        "files": report["files"],
    }
    finish(figures | quality, goals)


if __name__ == "__main__":
    main()
