"""A release has notes and files, is refused if tag, version and notes differ, and is uploaded."""

import importlib
import json
import re
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from tests.support import program

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci"))
release, publish, sbom, wheel = map(
    importlib.import_module, ("release", "publish", "sbom", "wheel")
)
DATED = "# Changelog\n\n## 0.2.0, 2026-12-01\n\n- New.\n\n## 0.1.0, 2026-11-01\n\n- First.\n"


def test_release_notes_are_for_one_version() -> None:
    assert release.find_notes("0.2.0", DATED) == "- New.\n"


def test_changelog_has_one_entry_for_each_subject() -> None:
    lines = release.CHANGELOG.read_text().splitlines()
    subjects = Counter(line[:40] for line in lines if line.startswith("- "))
    assert {subject for subject, count in subjects.items() if count > 1} == set()


def test_notes_and_pages_have_absolute_links_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "- [Figures](../tests/FIGURES.md#x) and [CDK](https://e.org)."
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert wheel.fix_links(text, ".github").startswith("- Figures and ")
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/holdfast")
    pages = f"https://github.com/acme/holdfast/blob/v{wheel.read_library_version()}"
    fixed = wheel.fix_links(text, ".github")
    assert f"[Figures]({pages}/tests/FIGURES.md#x)" in fixed
    assert "[CDK](https://e.org)" in fixed


@pytest.mark.parametrize("version", ["0.3.0", "0.1"])
def test_a_version_without_notes_is_refused(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        release.find_notes(version, DATED)
    assert refused.value.code == 2
    assert "fix:     date it in" in capsys.readouterr().err


def test_another_tag_than_the_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        release.main("v99.0.0")
    assert "got:     v99.0.0" in capsys.readouterr().err


def test_a_history_without_the_release_before_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    release.check_order("0.1.0", [], [])
    release.check_order("0.2.0", ["0.1.0"], ["0.1.0"])
    release.check_order("0.2.0", ["0.2.0", "0.1.0"], ["0.1.0"])
    for released in ([], ["0.0.9"], ["0.3.0", "0.2.0", "0.1.0"]):
        with pytest.raises(SystemExit):
            release.check_order("0.2.0", released, ["0.1.0"])
    assert "0.1.0, as in the changelog" in capsys.readouterr().err


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


@pytest.mark.process
def test_a_release_has_every_file_that_its_workflow_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = wheel.read_library_version()
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version}, 2026-11-01\n\n- First.\n")
    monkeypatch.setattr(release, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(release, "OUT", tmp_path / "out")
    # Made by tests/plan/test_template_history.py, from a clone without uncommitted changes.
    bundle = tmp_path / "out" / f"template-{version}.bundle"
    monkeypatch.setattr(release, "write_template", lambda *_: bundle.touch())  # pyright: ignore
    release.main(f"v{version}")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    archives = {f"{name}-{version}.tar.gz" for name in ("holdfast_gke", "rendered", "locks")}
    archives.add(f"template-{version}.bundle")
    bills = {f"sbom-{group}-{version}.cdx.json" for group in release.LOCKS}
    assert files == {"NOTES.md", f"holdfast_gke-{version}-py3-none-any.whl"} | archives | bills
    with tarfile.open(tmp_path / "out" / f"locks-{version}.tar.gz") as archive:
        assert {f"{group}.txt" for group in release.LOCKS} <= set(archive.getnames())
    head = (ROOT / ".github/workflows/release.yml").read_text().partition("\nname:")[0]
    for word in ("wheel and sdist", "template", "rendered", "locks", "site", "bill of materials"):
        assert word in head


@pytest.mark.parametrize("group", release.LOCKS)
def test_the_sbom_has_every_locked_package(group: str) -> None:
    lock = (ROOT / "requirements" / f"{group}.txt").read_text()
    bill = sbom.make_bill(lock, "1.2.3")
    assert json.loads(json.dumps(bill)) == bill
    listed = []
    for component in bill["components"]:
        listed.append(f"{component['name']}=={component['version']}")
    assert listed == re.findall(r"^([\w.-]+==[\w.+!-]+)", lock, re.MULTILINE)
    hashes = []
    for component in bill["components"]:
        for digest in component["hashes"]:
            hashes.append(digest["content"])
    assert hashes == re.findall(r"sha256:([0-9a-f]{64})", lock)
    references = [component["bom-ref"] for component in bill["components"]]
    assert bill["dependencies"][0]["dependsOn"] == sorted(references)


def test_a_package_with_a_marker_says_where_it_is_installed() -> None:
    lock = f"jax==0.12.0.1 ; python_full_version >= '3.12' \\\n    --hash=sha256:{'a' * 64}\n"
    (component,) = sbom.make_bill(lock, "1.2.3")["components"]
    assert component["properties"] == [
        {"name": "python:marker", "value": "python_full_version >= '3.12'"}
    ]
    assert component["purl"] == "pkg:pypi/jax@0.12.0.1"


def test_the_wheel_and_sdist_alone_are_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = wheel.read_library_version()
    names = [f"holdfast_gke-{version}-py3-none-any.whl", f"holdfast_gke-{version}.tar.gz"]
    folder = tmp_path / "files"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    program(tmp_path / "bin/uv", f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SystemExit) as done:
        publish.main(f"v{version}", folder)
    assert done.value.code == 0
    paths = " ".join(str(folder / name) for name in names)
    assert (tmp_path / "called").read_text() == f"publish --trusted-publishing always {paths}\n"


@pytest.mark.parametrize("files", [[], ["other-0.1.0.tar.gz"], ["holdfast_gke-99.0.tar.gz"]])
def test_files_with_another_release_or_name_are_not_uploaded(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(SystemExit) as refused:
        publish.main(f"v{wheel.read_library_version()}", tmp_path)
    assert refused.value.code == 2
    assert "error:   files of the release" in capsys.readouterr().err
