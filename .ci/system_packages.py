"""`make system-packages`: what the tests need from Debian. Elsewhere it says what to install and
goes on.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys

# package -> the command that shows it is there
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
        missing.append("python3-venv")  # Debian's python3 comes without
    if not missing:
        return 0
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print(
            f"system-packages: install by hand (Debian names): {' '.join(missing)}", file=sys.stderr
        )
        return 0
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
    return subprocess.run(
        [
            "apt-get",
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            *missing,
        ],
        env=env,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
