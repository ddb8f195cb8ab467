"""Precision on manifests of strangers and recall on seeded defects, for `python -m workloads.library.tests.bench.lint`.

lint_labels.json holds findings on the modules that the test tools pin, each compared with its file by hand: right or
not, and why. A finding is right where its sentence holds for that file, applied as it is. The sample of 100 was drawn
once, by rule, with more from rules that find more; labels of retired rules are removed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.lint.engine import Options, lint
from tests import platforms
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.test_strangers import MODULES, folder

LABELS = Path(__file__).with_name("lint_labels.json")
FALSE_AT_MOST, FOUND_AT_LEAST = 0.05, 0.95


@dataclass(frozen=True, kw_only=True)
class Judged:
    files: int
    findings: int
    judged: int
    false: int
    """Of the judged, those that are still reported and not right."""
    gone: int
    """Judged findings that are no longer reported."""
    recall: dict[str, tuple[int, int]]
    """Topic -> defects found, defects seeded."""

    @property
    def precision(self) -> float:
        return 1 - self.false / max(1, self.judged - self.gone)

    @property
    def recalled(self) -> float:
        return sum(found for found, _ in self.recall.values()) / sum(seeded for _, seeded in self.recall.values())

    def lines(self) -> str:
        asked = self.judged - self.gone
        return (
            f"strangers: {self.findings} findings in {self.files} files; of {self.judged} judged by hand {asked} stand, "
            f"{self.false} of them false: precision {self.precision:.0%}\n"
            f"defects seeded in the linter's own field: recall {self.recalled:.1%}: "
            + ", ".join(f"{topic} {found} of {seeded}" for topic, (found, seeded) in self.recall.items())
        )

    def goals(self) -> dict[str, bool]:
        return {
            "at_most_5_percent_false": 1 - self.precision <= FALSE_AT_MOST,
            "at_least_95_percent_found": self.recalled >= FOUND_AT_LEAST,
        }


def judged() -> Judged:
    roots = {module: folder(tool, module) for tool, module in MODULES.items()}
    report = lint(
        [file for root in roots.values() for file in root.rglob("*.y*ml")], Options(platforms=[platforms.load("prod")])
    )
    names = {
        (f"{module}{finding.file.removeprefix(root.as_posix())}", finding.mark.line, finding.rule)
        for finding in report.active
        for module, root in roots.items()
        if finding.file.startswith(f"{root.as_posix()}/")
    }
    labels: list[dict[str, Any]] = json.loads(LABELS.read_text())
    standing = [label for label in labels if (label["file"], label["line"], label["rule"]) in names]
    return Judged(
        files=report.files,
        findings=len(report.active),
        judged=len(labels),
        false=sum(not label["right"] for label in standing),
        gone=len(labels) - len(standing),
        recall=recall(),
    )


def recall() -> dict[str, tuple[int, int]]:
    seeded = {"of the rendered jobs": defects.JOBS, "of the other rendered objects": defects.REST}
    found = {topic: (sum(each.found() for each in listed), len(listed)) for topic, listed in seeded.items()}
    alone = [rule in defects.found_in(base, change) for base, change, rule in defects.SINGLE]
    return found | {"of single objects": (sum(alone), len(alone))}
