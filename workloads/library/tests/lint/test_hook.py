"""Tests that a repository without our code can lint: the base dependencies are enough."""

import subprocess
import venv
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.support.errors import InputError
from tests import platforms
from tests.support import require

ROOT = Path(__file__).parents[4]
BAD = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot}\nvalue: 5\n"


@pytest.mark.process
def test_hook_lints_in_a_foreign_repository(tmp_path: Path) -> None:
    """Installs as pre-commit does: the repository of the hook, and what the hook adds."""
    (hook,) = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text())
    venv.create(tmp_path / "env", with_pip=True)
    pip = [
        tmp_path / "env/bin/python",
        "-m",
        "pip",
        "install",
        "-q",
        ".",
        *hook["additional_dependencies"],
    ]
    installed = subprocess.run(
        pip,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    require(
        installed.returncode == 0, f"the package index cannot be reached: {installed.stderr[-200:]}"
    )
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/class.yaml").write_text(BAD)
    platforms.write_document(platforms.load("example"), tmp_path / "repo")
    command = [tmp_path / "env/bin/holdfast", "lint", "class.yaml"]
    process = subprocess.run(
        command,
        cwd=tmp_path / "repo",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 1, process.stderr
    assert "[HF305]" in process.stdout
    (packages,) = (tmp_path / "env/lib").glob("python3.*/site-packages")
    for name in ("infra", "workloads", "monitoring", "tests"):
        assert not (packages / name).exists(), "the other repository may have this name itself"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: b\n", "no Kubernetes object"),
        (f"# holdfast: environment=exmaple\n{BAD}", "got exmaple; allowed: example"),
    ],
    ids=["nothing to examine", "a file of another platform"],
)
def test_unjudgeable_folder_is_bad_input(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    words = [
        "lint",
        str(tmp_path),
        "--platform",
        str(platforms.file("example")),
    ]
    with pytest.raises(InputError, match=error):
        CliRunner().invoke(app, words, catch_exceptions=False)
