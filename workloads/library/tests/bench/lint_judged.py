"""Precision on manifests of strangers and recall on seeded defects, for `python -m workloads.library.tests.bench.lint`.

lint_labels.json holds findings on the modules that the test tools pin, each compared with its file by hand: right or
not, and why. A finding is right where its sentence holds for that file, applied as it is. The sample of 100 was drawn
once, by rule, with more from rules that find more; labels of retired rules are removed.
"""

import json
from pathlib import Path
from typing import Any

from holdfast.lint.engine import Options, lint
from tests import platforms
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.test_strangers import MODULES, folder

LABELS = Path(__file__).with_name("lint_labels.json")


def judged() -> dict[str, Any]:
    """Precision of the judged findings that are still reported; recall by topic and of all."""
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
    standing = [label["right"] for label in labels if (label["file"], label["line"], label["rule"]) in reported]
    seeded = {
        "of the rendered jobs": [each.found() for each in defects.JOBS],
        "of the other rendered objects": [each.found() for each in defects.REST],
        "of single objects": [rule in defects.found_in(base, change) for base, change, rule in defects.SINGLE],
    }
    found = [each for topic in seeded.values() for each in topic]
    return {
        "strangers_files": report.files,
        "strangers_findings": len(report.active),
        "judged": {"by hand": len(labels), "reported": len(standing), "false": standing.count(False)},
        "precision": round(1 - standing.count(False) / max(1, len(standing)), 3),
        "recall": sum(found) / len(found),
        "defects": {topic: f"{sum(each)} of {len(each)}" for topic, each in seeded.items()},
    }
