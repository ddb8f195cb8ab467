"""Processes of this host that serve a cluster, such as kwok. Its API server may be elsewhere.

`ControlPlane` runs the API server itself; `kind.Beside` is next to one that runs in a
container.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from holdfast.clients.api import Api
from tests.cluster.sim import stages
from tests.cluster.sim.pki import LOCAL, Authority
from tests.cluster.sim.processes import Processes, free_ports
from tests.cluster.sim.resync import resync
from tests.tools.build import TOOLS


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Settings in which a large cluster differs from a small one."""

    lease_s: int = 40
    parallelism: int = 4
    apiserver_heap_mib: int = 0
    """Heap size above which the API server collects garbage more often; 0 sets no limit."""


class Host(ABC):
    def __init__(self, folder: Path, address: str = LOCAL) -> None:
        self.folder = folder
        self.address = address
        """Where the API server reaches the webhooks of this host."""
        self.authority = Authority(folder / "pki", address)
        self.processes = Processes(folder / "log")
        self._is_over = Event()

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the API server."""

    @property
    @abstractmethod
    def cluster_ca(self) -> Path:
        """The certificate authority by which clients verify the API server."""

    def stop(self) -> None:
        self._is_over.set()
        self.processes.stop()

    def write_kubeconfig(self, name: str, user: dict[str, str]) -> Path:
        cluster = {
            "server": self.url,
            "certificate-authority": str(self.cluster_ca),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [
                {
                    "name": "sim",
                    "context": {"cluster": "sim", "user": name},
                }
            ],
            "current-context": "sim",
        }
        return self.write_json(f"{name}.kubeconfig", content)

    def write_json(self, name: str, *documents: object) -> Path:
        """JSON is YAML, so every component reads it."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text("\n---\n".join(json.dumps(document, indent=1) for document in documents))
        return path

    def start_tool(self, name: str, env: dict[str, str] | None = None, **flags: object) -> None:
        arguments = []
        for key, value in flags.items():
            arguments.append(f"--{key.replace('_', '-')}={value}")
        self.processes.start(name, [TOOLS[name].binary, *arguments], env)

    def start_kwok(self, kubeconfig: Path, scale: Scale) -> None:
        configuration: dict[str, Any] = {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            # Kubelets serve logs by their debugging handlers.
            "options": {name: 4 * scale.parallelism for name in _KWOK_PARALLELISM}
            | {"enableDebuggingHandlers": True},
        }
        self.start_tool(
            "kwok",
            kubeconfig=kubeconfig,
            config=self.write_json(
                "kwok.json", configuration, self._pod_logs(), _EXEC, *stages.all_stages()
            ),
            **self._kubelet(),
            manage_nodes_with_annotation_selector=f"{stages.MANAGED}=fake",
            node_lease_duration_seconds=scale.lease_s,
            v="WARN",  # else a line for every step of every pod
        )
        Thread(target=resync, args=(Api(kubeconfig), self._is_over), daemon=True).start()

    def _kubelet(self) -> dict[str, object]:
        """Returns options for the address where the API server asks for logs of simulated pods."""
        self.authority.issue("kubelet")
        (port,) = free_ports(1, self.address)
        served = {
            "node_ip": self.address,
            "node_port": port,
            "server_address": f"{self.address}:{port}",
        }
        certificate = self.authority.certificate("kubelet")
        key = self.authority.key("kubelet")
        return served | {"tls_cert_file": certificate, "tls_private_key_file": key}

    def _pod_logs(self) -> dict[str, Any]:
        """Every simulated pod prints the same line."""
        path = self.folder / "pod.log"
        # As a container runtime writes it.
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        path.write_text(f'{now} stdout F {{"severity": "INFO", "message": "a simulated pod"}}\n')
        kind = {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "ClusterLogs",
            "metadata": {"name": "pods"},
        }
        return kind | {
            "spec": {
                "logs": [
                    {
                        "logsFile": str(path),
                        "follow": False,
                    }
                ]
            }
        }


# A command in a simulated pod is a process of this host.
_EXEC = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "ClusterExec",
    "metadata": {"name": "pods"},
    "spec": {"execs": [{"local": {"workDir": "/"}}]},
}
_KWOK_PARALLELISM = ("podPlayStageParallelism", "nodePlayStageParallelism", "nodeLeaseParallelism")
