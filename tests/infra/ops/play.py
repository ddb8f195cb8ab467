"""`python -m tests.infra.ops.play FOLDER`: a proof on a project that is a file."""

import os
import sys
from pathlib import Path

from holdfast.contract.errors import run_cli
from infra.ops import prove
from tests.infra.samples import EXAMPLE


def main(folder: Path) -> None:
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    sys.executable = str(folder / "python")
    sys.exit(prove.prove(EXAMPLE, max_usd=100, yes=True, out=folder / "proofs"))


if __name__ == "__main__":
    run_cli(lambda: main(Path(sys.argv[1])))
