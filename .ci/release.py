"""`python .ci/release.py vX.Y.Z` writes the files of a release to out/release. Exits with 2 if tag,
version and changelog differ.
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
import tomllib
from pathlib import Path

from bootstrap import ROOT, refuse
from sbom import make_bill

# Of the platform, and of each kind of image.
LOCKS = ("infra", "monitor", "serve", "train")
OUT = ROOT / "out" / "release"
CHANGELOG = ROOT / ".github" / "CHANGELOG.md"


def main(tag: str) -> None:
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
    (OUT / "NOTES.md").write_text(notes)
    (OUT / f"rendered-{version}.tar.gz").write_bytes(archive(ROOT / "workloads" / "rendered"))
    (OUT / f"template-{version}.tar.gz").write_bytes(archive_template())
    (OUT / f"locks-{version}.tar.gz").write_bytes(archive(ROOT / "requirements"))
    for group in LOCKS:
        bill = make_bill((ROOT / "requirements" / f"{group}.txt").read_text(), version)
        (OUT / f"sbom-{group}-{version}.cdx.json").write_text(f"{json.dumps(bill, indent=2)}\n")
    print(*sorted(path.name for path in OUT.iterdir()), sep="\n")


def read_library_version() -> str:
    project = tomllib.loads((ROOT / "workloads/library/pyproject.toml").read_text())["project"]
    return project["version"]


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
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    return buffer.getvalue()


def archive_template() -> bytes:
    """Pack the repository that a team keeps, as `make template` writes it."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "platform"
        command = [sys.executable, ROOT / ".ci/template.py", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return archive(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", metavar="vX.Y.Z")
    main(parser.parse_args().tag)
