"""A bridge of this host for pods with an address of their own; it goes with the lab. No way leads
from it to elsewhere.
"""

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.cluster.sim.processes import is_orphan, owner

PREFIX = "hfn"


def remove_orphans() -> None:
    """Removes the bridges of runs that were killed."""
    for link in Path("/sys/class/net").glob(f"{PREFIX}*"):
        if is_orphan(link.name.removeprefix(PREFIX)):
            subprocess.run(["ip", "link", "delete", link.name], check=False)


class Bridge:
    def __init__(self, number: int) -> None:
        """Names the bridge; `number` is that of the lab among the labs of this process."""
        self.name = f"{PREFIX}{owner()}-{number}"  # at most 15 characters
        self._net = f"10.{180 + (os.getpid() + number) % 60}"

    @property
    def address(self) -> str:
        """Returns the address of this host as pods see it."""
        return f"{self._net}.0.1"

    def up(self) -> None:
        subprocess.run(["ip", "link", "add", self.name, "type", "bridge"], check=True)
        subprocess.run(
            [
                "ip",
                "address",
                "add",
                f"{self.address}/16",
                "dev",
                self.name,
            ],
            check=True,
        )
        subprocess.run(["ip", "link", "set", self.name, "up"], check=True)

    def down(self) -> None:
        with suppress(subprocess.CalledProcessError):  # it was never up
            subprocess.run(
                ["ip", "link", "delete", self.name], check=True, stderr=subprocess.DEVNULL
            )

    def network(self, machine: int) -> str:
        """Returns a container network configuration with addresses that no other machine gives."""
        block = f"{self._net}.{machine % 250 + 1}"
        addresses = {
            "subnet": f"{self._net}.0.0/16",
            "rangeStart": f"{block}.2",
            "rangeEnd": f"{block}.250",
        }
        addresses |= {"gateway": self.address}
        ipam = {
            "type": "host-local",
            "ranges": [[addresses]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugin = {
            "type": "bridge",
            "bridge": self.name,
            "ipam": ipam,
        }
        return json.dumps(
            {
                "cniVersion": "0.4.0",
                "name": "lab",
                "plugins": [plugin],
            }
        )
