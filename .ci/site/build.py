"""`make site`, with the root on PYTHONPATH, writes the site as a folder of HTML, which needs no
server.

Exits with 1 if a link or an anchor is broken.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pages

from tests.plan.isolated import environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def build(out: Path) -> int:
    pages.gather(out / "pages")
    env = os.environ | {
        "HOLDFAST_PAGES": str(out / "pages"),
        "HOLDFAST_SITE": str(out / "html"),
    }
    # Without it, Material for MkDocs prints a notice about another project.
    env |= {"NO_MKDOCS_2_WARNING": "1"}
    python = environment("docs") / "bin" / "python"
    command = [
        str(python),
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--config-file",
        str(HERE / "mkdocs.yml"),
    ]
    return subprocess.run(command, env=env, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out-dir", type=Path, default=ROOT / "out" / "site")
    out: Path = parser.parse_args().out_dir.resolve()
    code = build(out)
    if code:
        return code
    print(out / "html" / "index.html")
    print(f"With search: python -m http.server -d {out / 'html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
