"""Precision on manifests of strangers and recall on seeded defects, for `python -m tests.bench.lint`.

lint_labels.json holds a stratified sample of 100 findings on the modules that the test tools pin, each read by hand
beside its file: right or not, and why. A finding is right where its sentence holds for that file if it were applied as
it stands. The sample was drawn once, by rule, with more from rules that find more.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.workloads.manifests import test_recall
from tests.workloads.manifests.test_strangers import MODULES, folder
from workloads.manifests.lint.engine import Options, lint

LABELS = Path(__file__).with_name("lint_labels.json")
FALSE_AT_MOST = 0.05


@dataclass(frozen=True, kw_only=True)
class Judged:
    files: int
    findings: int
    judged: int
    false: int
    """Of the judged, those that are still reported and not right."""
    gone: int
    """Judged findings that are no longer reported."""
    seeded: int
    found: int

    @property
    def precision(self) -> float:
        return 1 - self.false / max(1, self.judged - self.gone)

    @property
    def recall(self) -> float:
        return self.found / self.seeded

    def lines(self) -> str:
        asked = self.judged - self.gone
        return (
            f"strangers: {self.findings} findings in {self.files} files; of {self.judged} judged by hand {asked} stand, "
            f"{self.false} of them false: precision {self.precision:.0%}\n"
            f"seeded defects of the linter's own field: {self.found} of {self.seeded} found: recall {self.recall:.0%}"
        )

    def goals(self) -> dict[str, bool]:
        return {"at_most_5_percent_false": 1 - self.precision <= FALSE_AT_MOST, "every_seeded_defect": self.recall == 1}


def judged() -> Judged:
    roots = {module: folder(tool, module) for tool, module in MODULES.items()}
    report = lint([file for root in roots.values() for file in root.rglob("*.y*ml")], Options(environment="prod"))
    names = {
        (f"{module}{finding.file.removeprefix(root.as_posix())}", finding.mark.line, finding.rule)
        for finding in report.active
        for module, root in roots.items()
        if finding.file.startswith(f"{root.as_posix()}/")
    }
    labels: list[dict[str, Any]] = json.loads(LABELS.read_text())
    standing = [label for label in labels if (label["file"], label["line"], label["rule"]) in names]
    seeds = seeded()
    return Judged(
        files=report.files,
        findings=len(report.active),
        judged=len(labels),
        false=sum(not label["right"] for label in standing),
        gone=len(labels) - len(standing),
        seeded=len(seeds),
        found=sum(rule in test_recall.found(base, change) for base, change, rule in seeds),
    )


def seeded() -> list[tuple[str, str, str]]:
    """Base, change and the rule that must find it: the table of the recall test."""
    (table,) = [mark for mark in test_recall.test_a_seeded_defect_is_found.pytestmark if mark.name == "parametrize"]  # pyright: ignore[reportFunctionMemberAccess]
    return list(table.args[1])
