"""`python -m workloads.library.tests.node.install` installs the node tier's packages, as root."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# package -> what shows that it is there
PACKAGES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "busybox-static": "/bin/busybox",
    "dbus-daemon": "/usr/bin/dbus-daemon",
    "iproute2": "/bin/ip",
    "buildah": "/usr/bin/buildah",
    "mmdebstrap": "/usr/bin/mmdebstrap",
}


def main() -> int:
    missing = []
    for package, path in PACKAGES.items():
        if not Path(path).exists():
            missing.append(package)
    if not missing:
        return 0
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"error:   {' '.join(missing)} not installed", file=sys.stderr)
        print("  got:     no root, or no Debian\n  allowed: root on Debian 12", file=sys.stderr)
        print("  fix:     install these packages by hand", file=sys.stderr)
        return 2
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
    print(
        f"installs {', '.join(missing)}; gone again with: apt-get purge {' '.join(missing)}",
        file=sys.stderr,
    )
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
