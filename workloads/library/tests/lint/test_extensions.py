"""Tests of rules of another distribution, registered by an entry point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workloads.library.tests import distribution

pytestmark = pytest.mark.process
RULES = """\
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object
from holdfast.lint.registry import rule


@rule(
    "{id}", "team-label", Severity.ERROR, on=Object,
    what="No team.", why="Bills.", source="acme", fix="add team",
    bad="apiVersion: v1\\nkind: Namespace\\nmetadata: {{name: a}}\\n",
    good="apiVersion: v1\\nkind: Namespace\\nmetadata: {{name: a, labels: {{team: b}}}}\\n",
)
def team_label(obj, context):
    if not obj.metadata.get("labels"):
        yield Hit(("metadata",), f"{{obj.title}} has no team")
"""


def run_lint(
    folder: Path, rules: str, module: str = "acme_rules", *words: str
) -> subprocess.CompletedProcess[str]:
    """Lints with a distribution of these rules, whose entry point names the module.

    With `words` it runs these options on the distribution that is installed already.
    """
    if not words:
        distribution.install(folder, "acme-rules", rules, "holdfast.lint_rules", f"team = {module}")
    (folder / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n")
    path = os.pathsep.join([str(folder), *sys.path])
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "lint",
        *(words or ("pod.yaml",)),
    ]
    env = os.environ | {"PYTHONPATH": path}
    env.pop("GITHUB_ACTIONS", None)
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_foreign_rule_finds_and_has_a_page(tmp_path: Path) -> None:
    lines = [line for line in RULES.splitlines(keepends=True) if "Namespace" not in line]
    rules = "".join(lines).format(id="ACME001")  # without examples
    process = run_lint(tmp_path, rules)
    assert process.returncode == 1, process.stderr
    assert "Pod/a has no team [ACME001]" in process.stdout and "fix: add team" in process.stdout
    page = run_lint(tmp_path, rules, "acme_rules", "--rule", "ACME001", "--json")
    assert (page.returncode, page.stderr) == (0, "") and "No team." in page.stdout


def test_unusable_rule_module_is_bad_input(tmp_path: Path) -> None:
    for rule_id, module, message in (
        ("HF101", "acme_rules", "HF101"),
        ("ACME001", "acme_missing", "No module named 'acme_missing'"),
    ):
        (tmp_path / rule_id).mkdir()
        process = run_lint(tmp_path / rule_id, RULES.format(id=rule_id), module)
        assert process.returncode == 2 and message in process.stderr
        assert "Traceback" not in process.stderr
