"""The command `render`: what is written, what is shown, and the exit codes."""

import shutil
from pathlib import Path

from typer.testing import CliRunner, Result

from holdfast.contract.errors import InputError
from tests.workloads.manifests.rendered import RENDERED
from workloads.__main__ import app

FILES = sorted(path.relative_to(RENDERED / "example").as_posix() for path in (RENDERED / "example").rglob("*.*"))


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_render_writes_the_files_of_the_environments(tmp_path: Path) -> None:
    done = call("render", "example", "--out", tmp_path)
    assert done.exit_code == 0
    assert sorted(done.stdout.split()) == [(tmp_path / "example" / name).as_posix() for name in FILES]
    for name in FILES:
        assert (tmp_path / "example" / name).read_text() == (RENDERED / "example" / name).read_text()
    assert not (tmp_path / "prod").exists()


def test_render_again_changes_nothing_and_removes_what_no_longer_belongs(tmp_path: Path) -> None:
    shutil.copytree(RENDERED / "example", tmp_path / "example")  # as the test above has seen it written
    left = tmp_path / "example" / "platform" / "99-old.yaml"
    left.write_text("kind: Pod\n")
    done = call("render", "example", "--out", tmp_path)
    assert done.stdout.split() == [left.as_posix()] and not left.exists()


def test_render_check_writes_nothing_and_exits_1_when_a_file_would_change(tmp_path: Path) -> None:
    shutil.copytree(RENDERED / "example", tmp_path / "example")
    edited = tmp_path / "example" / FILES[-1]
    edited.write_text("edited by hand\n")
    done = call("render", "example", "--out", tmp_path, "--check")
    assert done.exit_code == 1 and done.stdout.split() == [edited.as_posix()]
    assert done.stderr == "1 files differ: python -m workloads render\n"
    assert edited.read_text() == "edited by hand\n"


def test_render_of_an_unknown_environment_names_the_known_ones(tmp_path: Path) -> None:
    done = call("render", "exmaple", "--out", tmp_path)
    assert isinstance(done.exception, InputError) and "example" in str(done.exception)
    assert not any(tmp_path.iterdir())
