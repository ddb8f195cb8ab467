"""Hundreds of manifests that others wrote, out of the modules that the test tools are built from:
none is kept here.
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
LEAST_FILES = 400


def folder(tool: str, module: str) -> Path:
    """Where Go keeps the module at the version that is pinned."""
    pins = TOOLS[tool].pins
    env = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    for words in (("mod", "download", module), ("list", "-m", "-f", "{{.Dir}}", module)):
        command = [find_go(TOOLS[tool]), *words]
        done = subprocess.run(
            command,
            cwd=pins,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        require(done.returncode == 0, f"{module} cannot be had: {done.stderr[-300:]}")
    return Path(done.stdout.strip())


def test_manifests_of_strangers_are_judged_and_each_finding_names_a_rule_a_fix_and_a_place() -> (
    None
):
    strangers = sorted(
        file for tool, module in MODULES.items() for file in folder(tool, module).rglob("*.y*ml")
    )
    report = lint(strangers, Options(platforms=[platforms.load("prod")]))
    assert len(strangers) >= LEAST_FILES and report.files == len(strangers)
    assert report.objects >= LEAST_FILES, "few of them were understood"
    assert all(shown(report) for shown in (formats.text, formats.as_json, formats.github))
    lines = {file.as_posix(): len(file.read_bytes().splitlines()) for file in strangers}
    assert len(report.findings) > 150
    for finding in report.findings:
        assert finding.rule in all_rules() and finding.fix and finding.message
        assert 1 <= finding.mark.line <= lines[finding.file] + 1, finding.place
