"""The `holdfast` command that `make setup` writes into .venv of a clone."""

import json
import runpy
import sys
import venv
from importlib import import_module
from pathlib import Path

import pytest

from tests import platforms, support

ROOT = Path(__file__).parents[3]
EMBEDDING = """
import sys
from pathlib import Path
from holdfast.lint.engine import Options, lint
from holdfast.platform import read

manifests = Path(sys.argv[1])
print(lint([manifests], Options(platforms=[read(manifests / "platform.json")])).files)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a virtual environment with the packages of the one that runs the tests."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    bootstrap = import_module("bootstrap")
    environment = tmp_path / "of a person" / "venv"
    venv.create(environment, symlinks=True, with_pip=False)
    packages = bootstrap.site_packages()
    monkeypatch.setattr(bootstrap, "VENV", environment)
    (bootstrap.site_packages() / "packages.pth").write_text(f"{packages}\n")
    bootstrap.link_library()
    return environment / "bin" / "holdfast"


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """400 clean files, with the platform's document."""
    folder = tmp_path / "manifests"
    platforms.write_document(platforms.load("example"), folder)
    for number in range(400):
        manifest = (
            f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{number}, namespace: batch}}\n"
        )
        (folder / f"{number:03}.yaml").write_text(manifest)
    return folder


@pytest.mark.process
def test_the_command_lints_hundreds_of_files(
    command: Path, manifests: Path, tmp_path: Path
) -> None:
    done = support.ran([command, "lint", manifests, "--json"], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 400


@pytest.mark.process
def test_the_command_starts_in_a_folder_with_a_blank(command: Path) -> None:
    assert " " in str(command)
    done = support.ran([command, "--help"])
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_a_script_without_a_main_guard_lints_hundreds_of_files(
    manifests: Path, tmp_path: Path
) -> None:
    (tmp_path / "check.py").write_text(EMBEDDING)
    done = support.ran([sys.executable, "check.py", manifests], folder=tmp_path)
    assert done.stdout == "400\n"
    assert done.stderr == ""


def test_a_spawned_process_can_import_the_command(command: Path) -> None:
    """Under this name multiprocessing runs the main script again in each process that it spawns."""
    runpy.run_path(str(command), run_name="__mp_main__")
