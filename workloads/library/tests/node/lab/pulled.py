"""Images that every new machine has from its start, as a node with a disk of preloaded images has
them.

Pulled and unpacked once by a containerd of their own; a machine gets hard links, since nothing
writes to what is unpacked, and its own copy of the databases.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.sim.processes import Processes
from tests.support import ran
from workloads.library.tests.node.lab import config

LIMIT_S = 900


class Pulled:
    registry = ""
    """Registry of all images; empty while there are none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = folder / "containerd.toml"

    def pull(self, registry: str, images: Sequence[str]) -> None:
        if not self.registry:
            self.registry = registry
            self.folder.mkdir()
            config.mirror(self.folder, registry)
            self._settings.write_text(config.containerd(self.folder, state=f"{self.folder}/state"))
        processes = Processes(self.folder)
        processes.start("containerd", ["containerd", "--config", self._settings])
        try:
            ctr = [
                "ctr",
                "-a",
                f"{self.folder}/containerd.sock",
                "-n",
                "k8s.io",
            ]
            processes.wait_until(
                "containerd answers", lambda: ran([*ctr, "version"]).returncode == 0
            )
            for image in images:
                command = [
                    *ctr,
                    "images",
                    "pull",
                    f"--hosts-dir={self.folder}/certs.d",
                    image,
                ]
                subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    timeout=LIMIT_S,
                )
        finally:
            processes.stop()

    def copy_to(self, machine: Path) -> None:
        target = machine / "containerd"
        subprocess.run(
            ["cp", "--archive", "--link", self.folder / "containerd", target], check=True
        )
        for database in target.rglob("*.db"):
            content = database.read_bytes()
            database.unlink()  # a hard link: writing in place would change it for all
            database.write_bytes(content)
