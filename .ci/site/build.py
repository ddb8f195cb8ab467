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


def build(out: Path, *, has_versions: bool) -> int:
    pages.gather(out / "pages")
    env = os.environ | {
        "HOLDFAST_PAGES": str(out / "pages"),
        "HOLDFAST_SITE": str(out / "html"),
        # The one name by which Material for MkDocs knows a menu of versions. It needs no mike.
        "HOLDFAST_SITE_VERSIONS": "mike" if has_versions else "",
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
    parser.add_argument(
        "--versions", action="store_true", help="with a menu of versions, as releases have it"
    )
    arguments = parser.parse_args()
    out: Path = arguments.out_dir.resolve()
    code = build(out, has_versions=arguments.versions)
    if code:
        return code
    print(out / "html" / "index.html")
    print(f"With search: python -m http.server -d {out / 'html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
