"""Synthesise environments in a process of their own. Called by synth, plan, deploy and upgrade-check."""

import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from holdfast.contract.errors import Unjudged

ROOT = Path(__file__).parents[2]


def synthesise(name: str, out: Path, *, local_state: bool, root: Path = ROOT) -> dict[str, Path]:
    """Stack name -> folder with its cdk.tf.json, in the order of deployment."""
    variables = {"HOLDFAST_ENV": name, "CDKTF_OUTDIR": str(out.resolve())}
    if local_state:
        variables["HOLDFAST_STATE"] = "local"
    done = subprocess.run(
        [sys.executable, "-m", "infra.main"],
        cwd=root,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Unjudged(f"synthesis of {name} failed:\n{(done.stdout + done.stderr).strip()[-4000:]}")
    stacks = json.loads((out / "manifest.json").read_text())["stacks"]
    order = TopologicalSorter({name: stack["dependencies"] for name, stack in stacks.items()})
    return {name: out / stacks[name]["workingDirectory"] for name in order.static_order()}
