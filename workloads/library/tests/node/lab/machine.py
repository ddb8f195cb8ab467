"""The first process of a machine: `python -m workloads.library.tests.node.lab.machine CONFIG`, in
namespaces of its own.

Starts bus, logind's stand-in, containerd and kubelet. SIGUSR1 is the notice of a Spot VM: the
kubelet is notified, and when it is done or its time is over this process ends, and with it
everything on the machine.
"""

# Why it is so: infra/decisions/0082.

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from workloads.library.tests.node.lab import config, logind
from workloads.library.tests.node.lab.config import MachineConfig

# Between the last lock and the end of the machine an init system still stops its units; the kubelet
# writes the last status of its pods meanwhile.
UNITS_STOP_S = 3.0
# The kubelet would set these for the whole host.
SYSCTLS = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "net/ipv4/ip_forward")
# components write to them, whatever their flags say
PLACES = ("/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni")


async def live(machine: MachineConfig) -> None:
    folder = machine.path
    notice = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, notice.set)
    _private_mounts(folder)
    _write_configuration(machine)
    address = f"unix:path={folder}/bus.sock"
    _spawn(machine, "dbus-daemon", ["dbus-daemon", f"--config-file={folder}/bus.xml", "--nofork"])
    await _accepts(folder / "bus.sock")
    manager = await logind.serve(address, machine.total_s + 5)
    _spawn(machine, "containerd", ["containerd", "--config", f"{folder}/containerd.toml"])
    await _exists(folder / "containerd.sock")
    await _import_image(machine)
    _spawn(machine, "kubelet", _kubelet_command(machine), {"DBUS_SYSTEM_BUS_ADDRESS": address})
    # A failed start of the shutdown manager is logged once and never retried: the node would be
    # ready and not graceful.
    while not manager.inhibited:
        await asyncio.sleep(0.05)
    (folder / "inhibited").touch()
    await notice.wait()
    manager.PrepareForShutdown(True)
    done = await manager.wait_for_release(machine.total_s)
    await asyncio.sleep(UNITS_STOP_S)
    (folder / "shutdown.json").write_text(json.dumps({"graceful": done}))


def _private_mounts(folder: Path) -> None:
    """Keeps what the components write to fixed places on this machine."""
    for name in SYSCTLS:
        private = folder / name.replace("/", ".")
        private.write_text(Path("/proc/sys", name).read_text())
        subprocess.run(
            [
                "mount",
                "--bind",
                str(private),
                f"/proc/sys/{name}",
            ],
            check=True,
        )
    for place in PLACES:
        if Path(place).is_dir():
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)


def _write_configuration(machine: MachineConfig) -> None:
    folder = machine.path
    (folder / "cni").mkdir()
    (folder / "bus.xml").write_text(config.bus(folder / "bus.sock"))
    (folder / "cni" / "10-lab.conflist").write_text(machine.network)
    (folder / "containerd.toml").write_text(config.containerd(folder))
    if machine.registry:
        config.mirror(folder, machine.registry)
    (folder / "kubelet.json").write_text(json.dumps(config.kubelet(machine)))


def _kubelet_command(machine: MachineConfig) -> list[str]:
    folder = machine.path
    pairs = [f"{key}={value}" for key, value in machine.labels.items()]
    labels = ",".join(pairs)
    return [
        machine.kubelet,
        f"--config={folder}/kubelet.json",
        f"--kubeconfig={machine.kubeconfig}",
        f"--hostname-override={machine.name}",
        f"--root-dir={folder}/kubelet",
        f"--cert-dir={folder}/kubelet-pki",
        f"--node-labels={labels}",
        f"--node-ip={machine.address}",
        "--v=2",
    ]


async def _import_image(machine: MachineConfig) -> None:
    command = [
        "ctr",
        "-a",
        f"{machine.folder}/containerd.sock",
        "-n",
        "k8s.io",
        "images",
        "import",
        machine.image,
    ]
    await asyncio.to_thread(subprocess.run, command, check=True)


def _spawn(
    machine: MachineConfig,
    name: str,
    command: list[str],
    env: dict[str, str] | None = None,
) -> None:
    with (machine.path / f"{name}.log").open("ab") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | (env or {}),
        )


async def _exists(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.02)


async def _accepts(path: Path) -> None:
    """Waits until the socket's owner listens: the file appears a moment earlier."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(live(MachineConfig.load(Path(sys.argv[1]))))
