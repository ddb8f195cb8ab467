"""Rules of another distribution, registered by an entry point."""

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
    "{id}", "team-label", Severity.ERROR, on=Object, what="No team.", why="Bills.", source="acme", fix="add team",
    bad="apiVersion: v1\\nkind: Namespace\\nmetadata: {{name: a}}\\n",
    good="apiVersion: v1\\nkind: Namespace\\nmetadata: {{name: a, labels: {{team: b}}}}\\n",
)
def team_label(obj, context):
    if not obj.metadata.get("labels"):
        yield Hit(("metadata",), f"{{obj.title}} has no team")
"""


def linted(
    folder: Path, rules: str, module: str = "acme_rules", *words: str
) -> subprocess.CompletedProcess[str]:
    """By a distribution with these rules, whose entry point names the module."""
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
    env = {key: value for key, value in os.environ.items() if key != "GITHUB_ACTIONS"} | {
        "PYTHONPATH": path
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_rule_of_another_distribution_finds_and_has_a_page_also_without_examples(
    tmp_path: Path,
) -> None:
    bare = "".join(
        line for line in RULES.splitlines(keepends=True) if "Namespace" not in line
    ).format(id="ACME001")
    done = linted(tmp_path, bare)
    assert done.returncode == 1, done.stderr
    assert "Pod/a has no team [ACME001]" in done.stdout and "fix: add team" in done.stdout
    page = linted(tmp_path, bare, "acme_rules", "--rule", "ACME001", "--json")
    assert (page.returncode, page.stderr) == (0, "") and "No team." in page.stdout


def test_a_rule_that_takes_an_id_or_is_not_there_is_bad_input(tmp_path: Path) -> None:
    gone = "No module named 'acme_gone'"
    for rule_id, module, named in (
        ("HF101", "acme_rules", "HF101"),
        ("ACME001", "acme_gone", gone),
    ):
        (tmp_path / rule_id).mkdir()
        done = linted(tmp_path / rule_id, RULES.format(id=rule_id), module)
        assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr
