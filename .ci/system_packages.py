"""`make system-packages` installs the Debian packages that the tests need. On other systems it
prints their names and succeeds.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys

# package -> a command that it installs
PACKAGES = {
    "chromium": "chromium",
    "prometheus": "promtool",
    "git": "git",
    "build-essential": "cc",
}


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    missing = [package for package, command in PACKAGES.items() if not shutil.which(command)]
    if not importlib.util.find_spec("ensurepip"):
        missing.append("python3-venv")  # Debian's python3 does not include it
    if not missing:
        return 0
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print(
            f"system-packages: install by hand (Debian names): {' '.join(missing)}",
            file=sys.stderr,
        )
        return 0
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
