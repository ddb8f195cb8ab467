"""A control plane and machines that can be preempted, powered off and put back; nothing is left
afterwards.

The outside of `machine.py`: runs in the test process, as root.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.clients.api import Api
from holdfast.vocabulary.lifecycle import ShutdownWindow
from holdfast.vocabulary.pools import GPU_RESOURCE, Pool
from tests.cluster.sim import nodes
from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.processes import Processes, alive, free_ports, is_orphan, owner
from tests.cluster.sim.waiting import until
from tests.tools.build import TOOLS
from workloads.library.tests.node.lab import bridge, image
from workloads.library.tests.node.lab.bridge import Bridge
from workloads.library.tests.node.lab.config import MachineConfig
from workloads.library.tests.node.lab.pulled import Pulled

ROOT = Path(__file__).parents[5]
CGROUPS = Path("/sys/fs/cgroup")
CGROUP_PREFIX = "holdfast-node-"


@dataclass
class Machine:
    config: MachineConfig
    processes: Processes
    pid: int

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def first_pid(self) -> int:
        """Returns the outer id of the first process inside, for which `unshare` waits; 0: gone."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            return int(children.split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def notice(self) -> None:
        """Gives the notice that Compute Engine gives a Spot VM; returns at once."""
        os.kill(self.first_pid, signal.SIGUSR1)

    def off(self) -> bool:
        return not alive(self.pid)

    def power_off(self) -> None:
        """Ends the machine without a notice.

        The kernel ends the first process of a namespace after all others.
        """
        first = self.first_pid
        self.processes.stop()
        until(f"{self.name} is off", lambda: not first or not alive(first))
        remove_cgroups(self.config.cgroup)


class Lab:
    _made = itertools.count(1)

    def __init__(self, beside: "Lab | None" = None) -> None:
        """Starts a control plane; the lab `beside` has the same images, on the same disk."""
        self._number = next(self._made)
        # short: paths of sockets are limited to 108 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="hfn-"))
        self.machines: dict[str, Machine] = {}
        self.bridge = Bridge(self._number)
        self._boots = 0
        self._pulled: Pulled = beside._pulled if beside else Pulled(self.folder / "pulled")
        remove_orphans()
        bridge.remove_orphans()
        self.plane = ControlPlane(self.folder / "cp", simulate_nodes=False)
        try:
            self.api = Api(self.plane.start())
            self.bridge.up()
            self.image = image.write(self.folder / "image.tar")
        except BaseException:
            self.close()
            raise

    @property
    def _cgroups(self) -> str:
        return f"{CGROUP_PREFIX}{owner()}-{self._number}-"

    def close(self) -> None:
        for machine in self.machines.values():
            machine.power_off()
        self.plane.stop()
        self.bridge.down()
        remove_cgroups(self._cgroups)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pull(self, registry: str, images: Sequence[str]) -> None:
        """Pulls images for machines that boot from now on; these use `registry` for every registry
        there is.
        """
        self._pulled.pull(registry, images)

    def boot(
        self,
        name: str,
        pool: Pool,
        window: ShutdownWindow | None = None,
        *,
        tainted: bool = True,
        gpu: bool = False,
    ) -> Machine:
        """Boots a ready node of this pool under a kubelet with the pool's shutdown window.

        Without the taint every pod may run there. `gpu`: the node has one as an extended resource,
        without a device.
        """
        self._boots += 1
        folder = self.folder / f"m{self._boots}"
        folder.mkdir()
        (port,) = free_ports(1, self.bridge.address)
        granted = window or pool.window
        config = MachineConfig(
            name=name,
            folder=str(folder),
            cgroup=f"{self._cgroups}{self._boots}",
            kubelet=str(TOOLS["kubelet"].binary),
            image=str(self.image),
            kubeconfig=str(self._identity(name)),
            ca=str(self.plane.authority.ca),
            port=port,
            labels=pool.node_labels(),
            taints=nodes.taints(pool) if tainted else [],
            total_s=granted.total_s,
            critical_s=granted.critical_s,
            address=self.bridge.address,
            network=self.bridge.network(self._boots),
            registry=self._pulled.registry,
        )
        if self._pulled.registry:
            self._pulled.copy_to(folder)
        make_cgroups(config.cgroup)
        processes = Processes(folder)
        entry = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [
            *entry,
            sys.executable,
            "-m",
            "workloads.library.tests.node.lab.machine",
            config.save(),
        ]
        pid = processes.start("machine", command, {"PYTHONPATH": str(ROOT)})
        machine = self.machines[name] = Machine(config, processes, pid)
        processes.wait_until(f"{name} takes its shutdown lock", (folder / "inhibited").exists)
        until(f"{name} is ready", lambda: nodes.ready(self.api, [name]))
        if gpu:
            self.api.merge(
                f"{nodes.NODES}/{name}/status", {"status": {"capacity": {GPU_RESOURCE: "1"}}}
            )
        return machine

    def preempt(self, machine: Machine) -> bool:
        """Gives notice and waits until the kubelet has shut down by itself and the machine is gone.

        Returns whether the kubelet was done in time.
        """
        machine.notice()
        return self.leave(machine)

    def leave(self, machine: Machine) -> bool:
        """Waits until a noticed machine is gone; returns whether the kubelet was done in time."""
        until(
            f"{machine.name} is off", lambda: (machine.config.path / "shutdown.json").exists(), 180
        )
        until(f"{machine.name} is off", machine.off)
        graceful = json.loads((machine.config.path / "shutdown.json").read_text())["graceful"]
        self.forget(machine)
        return bool(graceful)

    def forget(self, machine: Machine) -> None:
        """Removes the VM for good, and its Node, as the cloud's controller does."""
        machine.power_off()
        nodes.remove(self.api, [machine.name])
        del self.machines[machine.name]

    def _identity(self, name: str) -> Path:
        authority = self.plane.authority
        authority.issue(name, common_name=f"system:node:{name}", organization="system:nodes")
        user = {
            "client-certificate": str(authority.certificate(name)),
            "client-key": str(authority.key(name)),
        }
        return self.plane.write_kubeconfig(f"node-{name}", user)


def _hierarchies() -> list[Path]:
    """Returns the one cgroup tree of v2, or the trees of all v1 controllers and v2's own."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    hierarchies: list[Path] = []
    for folder in CGROUPS.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            hierarchies.append(folder)
    return hierarchies


def remove_orphans() -> None:
    """Removes the cgroups of killed runs; those of another live run stay."""
    for hierarchy in _hierarchies():
        for top in hierarchy.glob(f"{CGROUP_PREFIX}*"):
            if is_orphan(top.name.removeprefix(CGROUP_PREFIX)):
                remove_cgroups(top.name)


def make_cgroups(name: str) -> None:
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / setting).exists():  # a new v1 cpuset is empty and takes no process
                (hierarchy / name / setting).write_text((hierarchy / setting).read_text())


def remove_cgroups(prefix: str) -> None:
    """Removes inner groups first; a group whose last process is dying is busy for a moment."""
    for hierarchy in _hierarchies():
        for top in hierarchy.glob(f"{prefix}*"):
            inner = [path for path in top.rglob("*") if path.is_dir()]
            inner.sort(key=lambda path: len(path.parts), reverse=True)
            for group in [*inner, top]:
                _remove_group(group)


def _remove_group(group: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError):
            group.rmdir()
        if not group.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.05)
