"""`make system-packages`: what the tests need from Debian. Elsewhere it says what to install and goes on."""

import os
import shutil
import subprocess
import sys

# package -> the command that shows it is there
PACKAGES = {"chromium": "chromium", "prometheus": "promtool", "python3-venv": "", "git": "git", "make": "make"}


def main() -> int:
    missing = [package for package, command in PACKAGES.items() if command and not shutil.which(command)]
    if not missing:
        return 0
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print(f"system-packages: install by hand (Debian names): {' '.join(missing)}", file=sys.stderr)
        return 0
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
    return subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
