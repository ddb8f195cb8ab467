"""`python .ci/release.py vX.Y.Z` writes the files of a release to out/release. Exits with 2 if tag,
version and changelog differ, or if the template's history lacks the releases before.
"""

import argparse
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import history
import template
from bootstrap import ROOT, refuse
from sbom import make_bill
from wheel import fix_links, read_library_version

# Of the platform, and of each kind of image.
LOCKS = ("infra", "monitor", "serve", "train")
OUT = ROOT / "out" / "release"
CHANGELOG = ROOT / ".github" / "CHANGELOG.md"


def main(tag: str, previous: Path | None = None) -> None:
    version = read_library_version()
    if tag != f"v{version}":
        refuse(
            "tag",
            tag,
            f"v{version}, the library's version",
            "set the version in workloads/library/pyproject.toml",
        )
    notes = find_notes(version, CHANGELOG.read_text())
    OUT.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, ROOT / ".ci/wheel.py", "--out-dir", OUT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (OUT / "NOTES.md").write_text(fix_links(notes, ".github"))
    (OUT / f"rendered-{version}.tar.gz").write_bytes(archive(ROOT / "workloads" / "rendered"))
    write_template(OUT / f"template-{version}.bundle", version, previous)
    (OUT / f"locks-{version}.tar.gz").write_bytes(archive(ROOT / "requirements"))
    for group in LOCKS:
        bill = make_bill((ROOT / "requirements" / f"{group}.txt").read_text(), version)
        (OUT / f"sbom-{group}-{version}.cdx.json").write_text(f"{json.dumps(bill, indent=2)}\n")
    print(*sorted(path.name for path in OUT.iterdir()), sep="\n")


def find_notes(version: str, changelog: str) -> str:
    """Return the section of a version. Exits with 2 if it is missing or has no date."""
    section = re.search(
        rf"^## {re.escape(version)}, (\S+)\n+(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if section is None or section[1] == "unreleased":
        refuse(
            f"changelog of {version}",
            "unreleased" if section else "no heading",
            f"## {version}, YYYY-MM-DD",
            f"date it in {CHANGELOG.relative_to(ROOT)}",
        )
    return section[2].strip() + "\n"


def archive(folder: Path) -> bytes:
    """Pack the files of a folder without owner and time, so that a commit always gives the same
    bytes.
    """
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    return buffer.getvalue()


def write_template(file: Path, version: str, previous: Path | None) -> None:
    """Write the template's history up to this release. `previous` is the file of the release
    before; by default the history is the branch origin/template.
    """
    if history.is_changed():
        refuse("source", "uncommitted changes", "the commit of the tag", "git status, then commit")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "platform"
        history.start(folder, previous)
        check_order(version, history.list_versions(folder), find_earlier(version))
        template.commit_template(folder, version, released=True)
        history.write_bundle(folder, file)


def check_order(version: str, released: list[str], earlier: list[str]) -> None:
    """Refuse a history without the last release: forks of it would have no common ancestor with
    this one.
    """
    newest = released[0] if released else "none"
    expected = earlier[0] if earlier else "none"
    if newest not in (expected, version):
        refuse(
            f"last release in the history of the template before {version}",
            newest,
            f"{expected}, as in the changelog",
            "git fetch origin template, or name its bundle with --history",
        )


def find_earlier(version: str) -> list[str]:
    """Return the dated versions below this one in the changelog, newest first."""
    older = CHANGELOG.read_text().partition(f"\n## {version},")[2]
    return re.findall(r"^## (\d\S*), \d", older, re.MULTILINE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", metavar="vX.Y.Z")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="the template's bundle of the release before; default: the branch origin/template",
    )
    arguments = parser.parse_args()
    main(arguments.tag, arguments.history)
