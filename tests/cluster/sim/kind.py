"""A kind cluster of the test run's own: stock nodes in containers, and next to
them simulated nodes and operators.

`--k8s-provider=kind` asks for it. kwok, JobSet and Kueue stay processes of this host, as with the
control plane of host processes; the API server in its container reaches their webhooks at the
gateway of kind's network.
"""

# Why it is so: infra/decisions/0081.

import base64
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import yaml

from holdfast.support.errors import Unjudged
from tests.cluster.sim.host import Host
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.processes import is_orphan, owner
from tests.support import ran
from tests.tools.build import KUBERNETES_VERSION

# what the control plane of host processes is built from
IMAGE = f"kindest/node:v{KUBERNETES_VERSION}"
WORKERS = 2  # a drained node's pods need another one
CREATE_S = 300
COMMAND_S = 120
BUSYBOX = Path("/bin/busybox")
HOST_MOUNT = "/host"  # of a node: below it lie the folders of this host that its pods may mount
# A Job's pods are made at the rate of the tests, not at that of a small cluster of people.
_CONTROLLERS = {
    "kube-api-qps": "500",
    "kube-api-burst": "1000",
    "concurrent-job-syncs": "20",
}


class Beside(Host):
    """Processes of this host for an API server that runs in a container."""

    def __init__(self, folder: Path, kubeconfig: Path, address: str) -> None:
        super().__init__(folder, address)
        cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        self._url = str(cluster["server"])
        self._ca = folder / "cluster-ca.crt"
        self._ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))

    @property
    def url(self) -> str:
        return self._url

    @property
    def cluster_ca(self) -> Path:
        return self._ca


class KindManager(OwnManager):
    mounts: tuple[Path, ...] = ()
    """Folders of this host that real pods read, at HOST_MOUNT of every node."""

    def __init__(self, cluster_name: str | None = None, *_: object) -> None:
        super().__init__(cluster_name)
        self.name = f"{prefix()}{owner()}"

    @classmethod
    def get_binary_name(cls) -> str:
        return "kind"

    @property
    def workers(self) -> list[str]:
        names: list[str] = []
        for n in range(1, WORKERS + 1):
            names.append(f"{self.name}-worker{n if n > 1 else ''}")
        return names

    @property
    def pod_folder(self) -> Path:
        """A folder of this host that pods may write to."""
        assert self.folder is not None
        return self.folder / "shared"

    def _start(self, folder: Path) -> Path:
        """Starts the cluster, after it has removed those that killed runs of this host left."""
        self._reap()
        self.pod_folder.mkdir()
        self.pod_folder.chmod(0o777)  # pods do not run as root
        kubeconfig = folder / "admin.kubeconfig"
        config = folder / "kind.json"
        config.write_text(json.dumps(self._config()))
        # Its own kubeconfig: the user's stays as it is.
        command = [
            "create",
            "cluster",
            "--name",
            self.name,
            "--config",
            config,
            "--kubeconfig",
            kubeconfig,
        ]
        self._kind([*command, "--wait", f"{CREATE_S}s"], CREATE_S + COMMAND_S)
        self.host = Beside(folder, kubeconfig, self._gateway())
        self.host.start_kwok(kubeconfig, self.scale)
        return kubeconfig

    def _end(self, folder: Path) -> None:
        """Deletes the cluster of this run only: the name holds its owner."""
        self._delete(self.name, folder / "admin.kubeconfig")

    def load_image(self, image: str) -> None:
        self._kind(["load", "docker-image", image, "--name", self.name])

    def _config(self) -> dict[str, Any]:
        mounts = []
        for path in self.mounts:
            mounts.append(
                {
                    "hostPath": str(path),
                    "containerPath": f"{HOST_MOUNT}{path}",
                    "readOnly": True,
                }
            )
        mounts.append(
            {
                "hostPath": str(self.pod_folder),
                "containerPath": f"{HOST_MOUNT}{self.pod_folder}",
            }
        )
        workers = []
        for _ in range(WORKERS):
            workers.append(
                {
                    "role": "worker",
                    "image": IMAGE,
                    "extraMounts": mounts,
                }
            )
        flags = []
        for name, value in _CONTROLLERS.items():
            flags.append({"name": name, "value": value})
        patch = {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "controllerManager": {"extraArgs": flags},
        }
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "kubeadmConfigPatches": [json.dumps(patch)],
            "nodes": [{"role": "control-plane", "image": IMAGE}, *workers],
        }

    def _gateway(self) -> str:
        template = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}"
        command = [
            "docker",
            "inspect",
            "--format",
            template,
            f"{self.name}-control-plane",
        ]
        return subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        ).stdout.strip()

    def _reap(self) -> None:
        for name in self._kind(["get", "clusters"]).split():
            if name.startswith(prefix()) and is_orphan(name.removeprefix(prefix())):
                self._delete(name, Path(os.devnull))

    def _delete(self, name: str, kubeconfig: Path) -> None:
        with contextlib.suppress(Unjudged):  # the cluster may never have come up
            self._kind(["delete", "cluster", "--name", name, "--kubeconfig", kubeconfig])

    def _kind(self, arguments: list[str | Path], timeout_s: float = COMMAND_S) -> str:
        command = ["kind", *(str(argument) for argument in arguments)]
        done = ran(command, timeout_s=timeout_s)
        if done.returncode:
            raise Unjudged(
                f"`kind {command[1]} {command[2]}` ended with {done.returncode}:"
                f" {done.stderr[-2000:]}"
            )
        return done.stdout


def prefix() -> str:
    """Returns a prefix with the host in it: on a shared engine a process id alone says nothing."""
    return f"holdfast-tests-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"


def missing() -> str:
    """What a kind cluster and its pods need and this host lacks, in words; empty if nothing."""
    absent = [name for name in ("docker", "kind") if not shutil.which(name)]
    if absent:
        return f"{' and '.join(absent)} not on PATH"
    # the loader that a dynamic program names
    if not BUSYBOX.exists() or b"/ld-" in BUSYBOX.read_bytes()[:4096]:
        return (
            f"{BUSYBOX}, of which the pods' image is made, is not static (Debian: busybox-static)"
        )
    engine = os.environ.get("DOCKER_HOST", "")
    if engine and not engine.startswith("unix://"):
        return f"DOCKER_HOST={engine} is no engine of this host, whose folders the nodes mount"
    done = ran(["docker", "info"], timeout_s=COMMAND_S)
    if done.returncode == 0:
        return ""
    return f"no Docker engine answers: {done.stderr.strip()[-300:]}"
