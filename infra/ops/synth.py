"""Synthesise environments in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from holdfast.support.errors import Unjudged
from infra.contract import names

ROOT = Path(__file__).parents[2]
LIBRARY = Path("workloads/library")


def variables_of(root: Path) -> dict[str, str]:
    """For a process of the code in `root`."""
    # What is installed is this checkout's library: another revision would be judged by the
    # constants of this one.
    return {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(root / LIBRARY), os.environ.get("PYTHONPATH")])
        )
    }


def synthesise(
    name: str,
    out: Path,
    *,
    local_state: bool,
    root: Path = ROOT,
) -> dict[str, Path]:
    """Stack name -> folder with its cdk.tf.json, in the order of deployment."""
    variables = {
        "HOLDFAST_ENV": name,
        "CDKTF_OUTDIR": str(out.resolve()),
        **variables_of(root),
    }
    if local_state:
        # Also what lets a CHANGE-ME be planned (infra/decisions/0011).
        variables["HOLDFAST_STATE"] = "local"
    # `root` may hold another revision: two of them imported into one process would mix their
    # modules.
    done = subprocess.run(
        [sys.executable, "-m", "infra.main"],
        cwd=root,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Unjudged(
            f"synthesis of {name} failed:\n{(done.stdout + done.stderr).strip()[-4000:]}"
        )
    stacks = json.loads((out / "manifest.json").read_text())["stacks"]
    order = {stack: place for place, stack in enumerate(names.stacks(name))}
    # Another revision may have stacks that this one does not know: last, they are compared and
    # never deployed.
    return {
        s: out / stacks[s]["workingDirectory"]
        for s in sorted(stacks, key=lambda s: order.get(s, len(order)))
    }
