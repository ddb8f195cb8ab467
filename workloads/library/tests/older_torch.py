"""`make test-torch [TORCH=oldest]`: training and checkpoints with older versions of PyTorch.

The oldest that checkpoints take, the oldest with which gangs run, and one in the middle between it
and the newest, with which all other tests run. Each is installed next to the ordinary environment,
in the user's cache: 6 GB, once for each lock.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib

from tests.plan import isolated
from tests.support import ROOT

LIBRARY = ROOT / "workloads" / "library"
INSTALL_S = 3600
# What meets PyTorch's own interfaces: tensors and optimizers in a state, meshes of processes.
CHECKPOINT_FILES = (
    "checkpoint/test_types.py",
    "checkpoint/test_optimizers.py",
    "checkpoint/test_exact_or_refused.py",
    "checkpoint/test_meshes.py",
)
# And the store and the agent of the launcher.
GANG_FILES = (
    "training/test_nodes.py",
    "training/test_notices.py",
    *CHECKPOINT_FILES,
)
VERSIONS = {
    "oldest": ("training/test_older_torch.py", *CHECKPOINT_FILES),
    "oldest-gangs": GANG_FILES,
    "middle": GANG_FILES,
}
"""Files of the tests that run with each version."""
# PyTorch 2.11 gives it while it imports its own compiler.
WARNING = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"


def read_oldest_version() -> str:
    """Returns the lower bound of PyTorch in the library's requirements."""
    project = tomllib.loads((LIBRARY / "pyproject.toml").read_text())["project"]
    (bound,) = re.findall(r"torch>=([\d.]+)", " ".join(project["optional-dependencies"]["torch"]))
    return bound


def read_locked_version(lock: str) -> str:
    """Returns the version of PyTorch in a lock file."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    (version,) = re.findall(r"^torch==([\d.]+)", text, re.MULTILINE)
    return version


def run_tests(name: str) -> int:
    """Runs the tests with one of `VERSIONS` and returns pytest's exit code."""
    lock = f"torch-{name}"
    site = isolated.site_packages(isolated.environment(lock, timeout_s=INSTALL_S))
    variables = os.environ | {"PYTHONPATH": str(site)}
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(f"PyTorch {version}", flush=True)
    if version.partition("+")[0] != read_locked_version(lock):
        print(f"not the version of requirements/{lock}.txt")
        return 1
    paths = [str(LIBRARY / "tests" / file) for file in VERSIONS[name]]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-W", WARNING, *paths]
    return subprocess.run(command, cwd=ROOT, env=variables).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(VERSIONS))
    versions = parser.parse_args().versions or VERSIONS
    unknown = [name for name in versions if name not in VERSIONS]
    if unknown:
        parser.error(f"got {', '.join(unknown)}; allowed: {', '.join(VERSIONS)}; fix: TORCH=middle")
    return max(run_tests(name) for name in versions)


if __name__ == "__main__":
    sys.exit(main())
