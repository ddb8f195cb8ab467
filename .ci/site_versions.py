"""The site of each release is a file of it, and the published site has them all: each in a folder
of its version, with a menu of versions.

`pack` builds and packs the site of this tree; `gather` unpacks those of all releases.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from bootstrap import ROOT, refuse
from release import archive
from wheel import read_library_version

NAME = re.compile(r"site-(\d+)\.(\d+)\.(\d+)\.tar\.gz")
# Links to a page of the newest version stay right with the next release.
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>Holdfast</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
<a href="{version}/index.html">Holdfast {version}</a>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("pack", help="write site-VERSION.tar.gz")
    verb.add_argument("--out-dir", type=Path, default=ROOT / "out" / "release")
    verb = verbs.add_parser("gather", help="write the site of all releases")
    verb.add_argument("archives", type=Path, help="folder with the files site-VERSION.tar.gz")
    verb.add_argument("--out-dir", type=Path, default=ROOT / "out" / "sites")
    arguments = parser.parse_args()
    if arguments.verb == "pack":
        print(pack(arguments.out_dir))
    else:
        print(*gather(arguments.archives, arguments.out_dir), sep="\n")


def pack(out: Path) -> Path:
    """Build and pack the site of this tree; return the file. Exit as a failed build does."""
    site = ROOT / "out" / "site"
    command = [sys.executable, ROOT / ".ci/site/build.py", "--out-dir", site, "--versions"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    code = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False).returncode
    if code:
        sys.exit(code)
    return pack_folder(site / "html", out)


def pack_folder(html: Path, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"site-{read_library_version()}.tar.gz"
    file.write_bytes(archive(html))
    return file


def gather(archives: Path, out: Path) -> list[str]:
    """Unpack the sites of `archives` into `out` and return the versions, newest first."""
    files = {}
    for path in archives.glob("site-*.tar.gz"):
        name = NAME.fullmatch(path.name)
        if name:
            files[tuple(map(int, name.groups()))] = path
    if not files:
        refuse(
            "sites of releases",
            f"none in {archives}",
            "site-X.Y.Z.tar.gz of each release",
            "gh release download, or python .ci/site_versions.py pack",
        )
    versions = []
    for number in sorted(files, reverse=True):
        version = ".".join(map(str, number))
        with tarfile.open(files[number]) as packed:
            packed.extractall(out / version, filter="data")
        versions.append(version)
    menu = [{"version": version, "title": version, "aliases": []} for version in versions]
    menu[0]["aliases"] = ["latest"]
    (out / "versions.json").write_text(json.dumps(menu))
    (out / "index.html").write_text(REDIRECT.format(version=versions[0]))
    return versions


if __name__ == "__main__":
    main()
