"""`python -m tests.infra.proof.play FOLDER prove|clean`: the commands on a project that is a file."""

import os
import sys
from pathlib import Path

from holdfast.contract.errors import run_cli
from infra.proof import cli, steps
from tests.infra.samples import EXAMPLE


def main(folder: Path, verb: str) -> None:
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    program = str(folder / "stand_in.py")
    steps.PLATFORM, steps.WORK = (sys.executable, program, "infra"), (sys.executable, program, "workloads")
    if verb == "prove":
        sys.exit(cli.prove(EXAMPLE, max_usd=100, yes=True, as_json=True, out=folder / "proofs"))
    sys.exit(cli.clean(EXAMPLE, yes=True, as_json=True, out=folder / "proofs"))


if __name__ == "__main__":
    run_cli(lambda: main(Path(sys.argv[1]), sys.argv[2]))
