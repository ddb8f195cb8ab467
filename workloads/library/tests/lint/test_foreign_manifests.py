"""Lints hundreds of manifests of other projects.

They come from the modules that the test tools are built from; none is kept here.
"""

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.lint import formats
from holdfast.lint.engine import Options, lint
from holdfast.lint.registry import all_rules
from tests import platforms
from tests.support import require
from tests.tools.build import TOOLS, find_go

# The first run may download the modules.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
MODULES = {
    "kube-apiserver": "k8s.io/kubernetes",
    "kueue": "sigs.k8s.io/kueue",
    "jobset": "sigs.k8s.io/jobset",
    "kube-state-metrics": "k8s.io/kube-state-metrics/v2",
}
MIN_FILES = 400


def folder(tool: str, module: str) -> Path:
    """Returns the folder in which Go keeps the module at its pinned version."""
    pins = TOOLS[tool].pins
    env = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    for words in (("mod", "download", module), ("list", "-m", "-f", "{{.Dir}}", module)):
        command = [find_go(TOOLS[tool]), *words]
        process = subprocess.run(
            command,
            cwd=pins,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        reason = f"{module} cannot be downloaded: {process.stderr[-300:]}"
        require(process.returncode == 0, reason)
    return Path(process.stdout.strip())


def test_findings_in_foreign_manifests_are_complete() -> None:
    files: list[Path] = []
    for tool, module in MODULES.items():
        files += folder(tool, module).rglob("*.y*ml")
    report = lint(sorted(files), Options(platforms=[platforms.load("prod")]))
    assert len(files) >= MIN_FILES and report.files == len(files)
    assert report.objects >= MIN_FILES, "few of them were understood"
    assert formats.text(report) and formats.format_json(report) and formats.format_github(report)
    line_counts = {file.as_posix(): len(file.read_bytes().splitlines()) for file in files}
    assert len(report.findings) > 150
    for finding in report.findings:
        assert finding.rule in all_rules() and finding.fix and finding.message
        assert 1 <= finding.mark.line <= line_counts[finding.file] + 1, finding.place
