"""`python .ci/publish.py vX.Y.Z DIR`: upload a release's wheel and sdist to PyPI, as a trusted
publisher without a token.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from bootstrap import find_uv, refuse
from wheel import read_library_version


def main(tag: str, folder: Path) -> None:
    version = read_library_version()
    if tag != f"v{version}":
        refuse(
            "tag",
            tag,
            f"v{version}, the library's version",
            "run the workflow of the release's own tag",
        )
    expected_files = [f"holdfast_gke-{version}-py3-none-any.whl", f"holdfast_gke-{version}.tar.gz"]
    files = sorted(path.name for path in folder.iterdir())
    if files != expected_files:
        refuse(
            "files of the release",
            ", ".join(files) or "none",
            ", ".join(expected_files),
            "download these two, and nothing else",
        )
    command = [
        find_uv(),
        "publish",
        "--trusted-publishing",
        "always",
        *(folder / name for name in expected_files),
    ]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", metavar="vX.Y.Z")
    parser.add_argument("folder", type=Path, metavar="DIR")
    main(**vars(parser.parse_args()))
