"""`make test-torch`: training and checkpoints with the oldest PyTorch that the library takes.

It is installed next to the ordinary environment, in the user's cache: 6 GB, once for each lock.
"""

import os
import re
import subprocess
import sys
import tomllib

from tests.plan import isolated
from tests.support import ROOT

LIBRARY = ROOT / "workloads" / "library"
LOCK = "torch-oldest"
INSTALL_S = 3600
# What meets PyTorch's own interfaces: the store and the agent of the launcher, tensors and
# optimizers in a state, meshes of processes.
FILES = (
    "training/test_nodes.py",
    "training/test_notices.py",
    "checkpoint/test_types.py",
    "checkpoint/test_optimizers.py",
    "checkpoint/test_exact_or_refused.py",
    "checkpoint/test_meshes.py",
)


def read_oldest_version() -> str:
    """Returns the lower bound of PyTorch in the library's requirements."""
    project = tomllib.loads((LIBRARY / "pyproject.toml").read_text())["project"]
    (bound,) = re.findall(r"torch>=([\d.]+)", " ".join(project["optional-dependencies"]["torch"]))
    return bound


def main() -> int:
    site = isolated.site_packages(isolated.environment(LOCK, timeout_s=INSTALL_S))
    variables = os.environ | {"PYTHONPATH": str(site)}
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(f"PyTorch {version}", flush=True)
    if not version.startswith(f"{read_oldest_version()}."):
        print(f"the lock has another version than torch>={read_oldest_version()}: make lock")
        return 1
    paths = [str(LIBRARY / "tests" / file) for file in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *paths]
    return subprocess.run(command, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
