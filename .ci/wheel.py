"""`make wheel`: the library of all that runs in pods, as wheel and sdist; with --wheel-only what
images install.
"""

import argparse
import os
import subprocess
from pathlib import Path

from bootstrap import ROOT, find_uv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out-dir", type=Path, default=ROOT / "out" / "wheel")
    parser.add_argument(
        "--wheel-only", action="store_true", help="and remove other versions from the folder"
    )
    given = parser.parse_args()
    out: Path = given.out_dir
    before = set(out.glob("holdfast_gke-*")) if given.wheel_only else set[Path]()
    for path in before:
        path.unlink()
    words = [
        find_uv(),
        "build",
        "--quiet",
        *(["--wheel"] if given.wheel_only else []),
        "--out-dir",
        out,
    ]
    # Times of the commit inside, so that two builds of one commit are one file.
    env = os.environ | {"SOURCE_DATE_EPOCH": committed_s()}
    subprocess.run([*words, ROOT / "workloads" / "library"], env=env, check=True)
    # uv's own: it would hide the folder from what reads the tree
    (out / ".gitignore").unlink(missing_ok=True)
    print(*sorted(str(path) for path in out.glob("holdfast_gke-*")), sep="\n")


def committed_s() -> str:
    """Of the last commit; outside git the first moment that a wheel can name."""
    words = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "315532800"


if __name__ == "__main__":
    main()
