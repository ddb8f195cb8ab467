"""`python -m tests.check_workflows [FOLDER]`: actionlint and zizmor over the workflow files; part
of `make check`.

Neither reaches the network: zizmor's online audits stay off.
"""

import subprocess
import sys
from pathlib import Path

from tests.plan.isolated import environment
from tests.tools import build

WORKFLOWS = Path(__file__).parents[1] / ".github" / "workflows"


def check(folder: Path = WORKFLOWS) -> int:
    """The worst exit code of both; what they find goes to the terminal."""
    files = [str(file) for file in sorted(folder.glob("*.yml"))]
    # The findings of this machine's shellcheck and pyflakes would differ on another machine.
    actionlint = [
        str(build.build(build.TOOLS["actionlint"])),
        "-shellcheck=",
        "-pyflakes=",
        *files,
    ]
    zizmor = [
        str(environment("workflows") / "bin" / "zizmor"),
        "--offline",
        "--no-progress",
        "--quiet",
        *files,
    ]
    return max(subprocess.run(command, check=False).returncode for command in (actionlint, zizmor))


if __name__ == "__main__":
    sys.exit(check(*map(Path, sys.argv[1:])))
