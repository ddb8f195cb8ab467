"""Synthesises environments in separate processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from holdfast.support.errors import Unjudged
from infra.contract import names

ROOT = Path(__file__).parents[2]
LIBRARY = Path("workloads/library")


def library_variables(root: Path) -> dict[str, str]:
    """Return the variables with which a process imports the library of `root`, not the installed
    one of this checkout.
    """
    folders = [str(root / LIBRARY)]
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        folders.append(inherited)
    return {"PYTHONPATH": os.pathsep.join(folders)}


def synthesise(
    name: str,
    out: Path,
    *,
    local_state: bool,
    root: Path = ROOT,
) -> dict[str, Path]:
    """Return stack -> folder with its cdk.tf.json, in the order of deployment.

    `root` may hold another revision, whose modules would mix with the imported ones: so the
    synthesis is another process. Raises Unjudged with its output if it fails.
    """
    variables = {
        "HOLDFAST_ENV": name,
        "CDKTF_OUTDIR": str(out.resolve()),
        **library_variables(root),
    }
    if local_state:
        # With local state, fields may be CHANGE-ME (infra/decisions/0011).
        variables["HOLDFAST_STATE"] = "local"
    process = subprocess.run(
        [sys.executable, "-m", "infra.main"],
        cwd=root,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if process.returncode != 0:
        output = (process.stdout + process.stderr).strip()
        raise Unjudged(f"synthesis of {name} failed:\n{output[-4000:]}")
    stacks = json.loads((out / "manifest.json").read_text())["stacks"]
    order = [stack for stack in names.stacks(name) if stack in stacks]
    # Another revision may have other stacks: they are compared, but never deployed.
    order += [stack for stack in stacks if stack not in order]
    return {stack: out / stacks[stack]["workingDirectory"] for stack in order}
