"""A release has its notes and archives, and is refused if tag, version and notes differ."""

import importlib
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci"))
release = importlib.import_module("release")
DATED = "# Changelog\n\n## 0.2.0, 2026-12-01\n\n- New.\n\n## 0.1.0, 2026-11-01\n\n- First.\n"


def test_release_notes_are_for_one_version() -> None:
    assert release.find_notes("0.2.0", DATED) == "- New.\n"


@pytest.mark.parametrize("version", ["0.3.0", "0.1"])
def test_a_version_without_notes_is_refused(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        release.find_notes(version, DATED)
    assert refused.value.code == 2 and "fix:     date it in" in capsys.readouterr().err


def test_another_tag_than_the_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        release.main("v99.0.0")
    assert "got:     v99.0.0" in capsys.readouterr().err


def test_an_archive_holds_the_tree_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "r.tar.gz").write_bytes(first := release.archive(ROOT / "workloads/rendered"))
    assert release.archive(ROOT / "workloads/rendered") == first
    with tarfile.open(tmp_path / "r.tar.gz") as archive:
        assert "example/platform/kustomization.yaml" in archive.getnames()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/run").touch(mode=0o755)
    (tmp_path / "t.tar.gz").write_bytes(release.archive(tmp_path / "tree"))
    with tarfile.open(tmp_path / "t.tar.gz") as archive:
        assert archive.getmember("run").mode & 0o100
