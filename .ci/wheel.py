"""`make wheel` builds the library, which runs in pods, as wheel and sdist; with --wheel-only, as
images install it.

In a workflow of GitHub, its metadata lead to the repository; elsewhere they name no address.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from posixpath import normpath

from bootstrap import ROOT, find_uv

LIBRARY = "workloads/library"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:]+)\)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out-dir", type=Path, default=ROOT / "out" / "wheel")
    parser.add_argument(
        "--wheel-only", action="store_true", help="and remove other versions from the folder"
    )
    arguments = parser.parse_args()
    out: Path = arguments.out_dir
    command = [find_uv(), "build", "--quiet", "--out-dir", out]
    if arguments.wheel_only:
        command.append("--wheel")
        for path in out.glob("holdfast_gke-*"):
            path.unlink()
    # Files in the wheel have the time of the commit, so that its builds are equal.
    env = os.environ | {"SOURCE_DATE_EPOCH": read_commit_time()}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "library"
        write_source(source)
        subprocess.run([*command, source], env=env, check=True)
    # uv writes this file, which would hide the folder from tools that read the tree.
    (out / ".gitignore").unlink(missing_ok=True)
    print(*sorted(str(path) for path in out.glob("holdfast_gke-*")), sep="\n")


def write_source(folder: Path) -> None:
    """Copy what is built, with a page and a project file that can be read outside the
    repository.
    """
    library = ROOT / LIBRARY
    folder.mkdir()
    shutil.copytree(
        library / "holdfast", folder / "holdfast", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copyfile(library / "LICENSE", folder / "LICENSE")
    (folder / "README.md").write_text(fix_links((library / "README.md").read_text(), LIBRARY))
    project = (library / "pyproject.toml").read_text()
    address = find_address()
    if address:
        project = project.replace("[project.scripts]", f"{write_urls(address)}\n[project.scripts]")
    (folder / "pyproject.toml").write_text(project)


def find_address() -> str:
    """Return the address of the repository that runs this workflow; empty outside of one."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    return f"https://github.com/{repository}" if repository else ""


def fix_links(text: str, folder: str) -> str:
    """Return a page of `folder` with absolute links; without an address, with their text only."""
    address = find_address()

    def fix(link: re.Match[str]) -> str:
        path = normpath(f"{folder}/{link[2]}")
        return f"[{link[1]}]({find_pages(address)}/{path})" if address else link[1]

    return LINK.sub(fix, text)


def find_pages(address: str) -> str:
    return f"{address}/blob/v{read_library_version()}"


def write_urls(address: str) -> str:
    """Return the table of the addresses that an index of packages shows."""
    pages = find_pages(address)
    urls = {
        "Homepage": address,
        "Documentation": f"{pages}/{LIBRARY}/docs",
        "Changelog": f"{pages}/.github/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = [f'{name} = "{url}"' for name, url in urls.items()]
    return "\n".join(["[project.urls]", *lines]) + "\n"


def read_library_version() -> str:
    project = tomllib.loads((ROOT / "workloads/library/pyproject.toml").read_text())["project"]
    return project["version"]


def read_commit_time() -> str:
    """Return the seconds of the last commit; outside git, the earliest time that a wheel can
    have.
    """
    process = subprocess.run(
        ["git", "log", "-1", "--format=%ct"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout.strip() or "315532800"


if __name__ == "__main__":
    main()
