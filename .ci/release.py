"""`python .ci/release.py vX.Y.Z`: what a release holds, in out/release. Exit 2 where tag, version
or changelog differ.
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
from sbom import bill_of

# Of the platform, and of each kind of image.
LOCKS = ("infra", "monitor", "serve", "train")
OUT = ROOT / "out" / "release"
CHANGELOG = ROOT / ".github" / "CHANGELOG.md"


def main(tag: str) -> None:
    version = library_version()
    if tag != f"v{version}":
        refuse(
            "tag",
            tag,
            f"v{version}, the library's version",
            "set the version in workloads/library/pyproject.toml",
        )
    notes = notes_of(version, CHANGELOG.read_text())
    OUT.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, ROOT / ".ci/wheel.py", "--out-dir", OUT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (OUT / "NOTES.md").write_text(notes)
    (OUT / f"rendered-{version}.tar.gz").write_bytes(archived(ROOT / "workloads" / "rendered"))
    (OUT / f"template-{version}.tar.gz").write_bytes(template())
    (OUT / f"locks-{version}.tar.gz").write_bytes(archived(ROOT / "requirements"))
    for group in LOCKS:
        bill = bill_of((ROOT / "requirements" / f"{group}.txt").read_text(), version)
        (OUT / f"sbom-{group}-{version}.cdx.json").write_text(f"{json.dumps(bill, indent=2)}\n")
    print(*sorted(path.name for path in OUT.iterdir()), sep="\n")


def library_version() -> str:
    return tomllib.loads((ROOT / "workloads/library/pyproject.toml").read_text())["project"][
        "version"
    ]


def notes_of(version: str, changelog: str) -> str:
    found = re.search(
        rf"^## {re.escape(version)}, (\S+)\n+(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None or found[1] == "unreleased":
        got = "unreleased" if found else "no heading"
        refuse(
            f"changelog of {version}",
            got,
            f"## {version}, YYYY-MM-DD",
            f"date it in {CHANGELOG.relative_to(ROOT)}",
        )
    return found[2].strip() + "\n"


def archived(folder: Path) -> bytes:
    """Its files, with owner and time left out, so that the same commit gives the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return buffer.getvalue()


def template() -> bytes:
    """The repository that a team keeps, as `make template` writes it."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "platform"
        subprocess.run(
            [sys.executable, ROOT / ".ci/template.py", out], check=True, stdout=subprocess.DEVNULL
        )
        return archived(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", metavar="vX.Y.Z")
    main(parser.parse_args().tag)
