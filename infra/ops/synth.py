"""Synthesizes environments in separate processes."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from holdfast.support.errors import Unjudged
from infra.contract import names

ROOT = Path(__file__).parents[2]
LIBRARY = Path("workloads/library")
# In a repository that `make template` made, the lock names the library's wheel.
LOCK = Path("requirements/dev.txt")
PIN = re.compile(r"^\./(vendor/holdfast_gke-\S+\.whl) --hash=sha256:([0-9a-f]{64})$", re.M)


def library_variables(root: Path) -> dict[str, str]:
    """Return the variables with which a process imports the library of `root`, not the installed
    one of this checkout.
    """
    library = root / LIBRARY
    folders = [str(library if library.is_dir() else _unpack_wheel(root))]
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        folders.append(inherited)
    return {"PYTHONPATH": os.pathsep.join(folders)}


def _unpack_wheel(root: Path) -> Path:
    """Return the folder with the unpacked wheel that `root` pins. Raises Unjudged if the wheel is
    missing or another one.

    Decision: infra/decisions/0141.
    """
    pin = PIN.search((root / LOCK).read_text())
    if pin is None:
        raise Unjudged(
            f"the library of {root}\n  got:     no wheel in {LOCK}\n"
            "  allowed: ./vendor/holdfast_gke-X.Y.Z-py3-none-any.whl --hash=sha256:...\n"
            "  fix:     add the wheel of a release to vendor/ and its line to the lock"
        )
    wheel = root / pin[1]
    digest = pin[2]
    defect = ""
    if not wheel.is_file():
        defect = "is missing"
    elif hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
        defect = "with another hash"
    if defect:
        raise Unjudged(
            f"the library of {root}\n"
            f"  got:     {pin[1]} {defect}\n"
            f"  allowed: the wheel whose hash is in {LOCK}\n"
            "  fix:     take the wheel and its line from the same release"
        )
    library = root / "out" / "library" / digest
    if not library.is_dir():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            unpacked = Path(folder) / digest
            zipfile.ZipFile(wheel).extractall(unpacked)
            try:
                unpacked.rename(library)
            except OSError:
                # Another process may have unpacked the wheel meanwhile.
                if not library.is_dir():
                    raise
    return library


def synthesize(
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
    folders: dict[str, Path] = {}
    # Another revision may have other stacks: they are compared, but never deployed.
    for stack in (*names.stacks(name), *stacks):
        if stack in stacks:
            folders[stack] = out / stacks[stack]["workingDirectory"]
    return folders
