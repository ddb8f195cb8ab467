"""`make wheel` builds the library, which runs in pods, as wheel and sdist; with --wheel-only, as
images install it.
"""

import argparse
import os
import subprocess
import tomllib
from pathlib import Path

from bootstrap import ROOT, find_uv


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
    subprocess.run([*command, ROOT / "workloads" / "library"], env=env, check=True)
    # uv writes this file, which would hide the folder from tools that read the tree.
    (out / ".gitignore").unlink(missing_ok=True)
    print(*sorted(str(path) for path in out.glob("holdfast_gke-*")), sep="\n")


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
