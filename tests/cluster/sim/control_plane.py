"""etcd, API server, controller manager, scheduler and kwok as processes of this host, on 127.0.0.1
only.

Started by `HostManager` for the tests and by the benchmark. Each component has its own identity and
the rights that Kubernetes gives it; nothing is shared but the authority that signed them.
"""

# Why it is so: infra/decisions/0081.

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.clients.api import Api
from holdfast.support.errors import Unjudged
from tests.cluster.sim.host import Host, Scale
from tests.cluster.sim.processes import free_ports
from tests.support import require
from tests.tools.build import TOOLS

NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")
# name of the key pair -> user and group that the API server sees
IDENTITIES = {
    "admin": ("holdfast-tests", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    # kwok plays every kubelet at once, which no single node identity may.
    "kwok": ("kwok", "system:masters"),
}


def missing_tools(*others: str) -> list[str]:
    return [name for name in (*NEEDED, *others) if not TOOLS[name].binary.exists()]


class ControlPlane(Host):
    def __init__(
        self, folder: Path, scale: Scale | None = None, *, simulate_nodes: bool = True
    ) -> None:
        super().__init__(folder)
        self.simulate_nodes = simulate_nodes
        self.scale = scale or Scale()
        self.port, self._etcd_port, self._peer_port = free_ports(3)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def cluster_ca(self) -> Path:
        return self.authority.ca

    def start(self) -> Path:
        """The administrator's kubeconfig, once the API server and the controllers answer."""
        self._issue()
        self._start_etcd()
        self._start_apiserver()
        self.processes.wait_until("the API server is alive", lambda: self.answers("/livez"))
        self._start_controller_manager()
        self._start_scheduler()
        if self.simulate_nodes:
            self.start_kwok(self.kubeconfig("kwok"), self.scale)
        self.processes.wait_until("the API server is ready", lambda: self.answers("/readyz"))
        return self.kubeconfig("admin")

    def answers(self, path: str) -> bool:
        with suppress(Unjudged):
            return Api(self.kubeconfig("admin")).text(path) == "ok"
        return False

    def kubeconfig(self, identity: str) -> Path:
        """Writes the kubeconfig of one of IDENTITIES, with its client certificate."""
        user = {
            "client-certificate": str(self.authority.certificate(identity)),
            "client-key": str(self.authority.key(identity)),
        }
        return self.write_kubeconfig(identity, user)

    def _issue(self) -> None:
        for name in ("etcd", "kube-apiserver"):
            self.authority.issue(name)
        for name, (user, group) in IDENTITIES.items():
            self.authority.issue(name, common_name=user, organization=group)
        self.authority.issue_signing_key("service-accounts")

    def _start_etcd(self) -> None:
        peer = f"http://127.0.0.1:{self._peer_port}"
        self.start_tool(
            "etcd",
            data_dir=self.folder / "etcd",
            unsafe_no_fsync="true",  # the data lives as long as the process
            log_level="warn",
            listen_client_urls=self._etcd_url,
            advertise_client_urls=self._etcd_url,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
            client_cert_auth="true",
            trusted_ca_file=self.authority.ca,
            cert_file=self.authority.certificate("etcd"),
            key_file=self.authority.key("etcd"),
        )

    @property
    def _etcd_url(self) -> str:
        return f"https://127.0.0.1:{self._etcd_port}"

    def _start_apiserver(self) -> None:
        certificate = self.authority.certificate("kube-apiserver")
        key = self.authority.key("kube-apiserver")
        tokens = self.authority.key("service-accounts")
        heap_mib = self.scale.apiserver_heap_mib
        self.start_tool(
            "kube-apiserver",
            {"GOMEMLIMIT": f"{heap_mib}MiB"} if heap_mib else None,
            bind_address="127.0.0.1",
            secure_port=self.port,
            endpoint_reconciler_type="none",
            etcd_servers=self._etcd_url,
            etcd_cafile=self.authority.ca,
            etcd_certfile=certificate,
            etcd_keyfile=key,
            tls_cert_file=certificate,
            tls_private_key_file=key,
            client_ca_file=self.authority.ca,
            # Logs of pods on the kubelets of the node tier, which resolve no names.
            kubelet_client_certificate=self.authority.certificate("admin"),
            kubelet_client_key=self.authority.key("admin"),
            kubelet_preferred_address_types="InternalIP",
            authorization_mode="Node,RBAC",
            # As on GKE; Pod Security of a namespace decides.
            allow_privileged="true",
            service_cluster_ip_range="10.0.0.0/24",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=tokens,
            service_account_signing_key_file=tokens,
            # A storm of evictions is a burst by design, and there is no other client to be fair to.
            enable_priority_and_fairness="false",
            max_requests_inflight=0,
            max_mutating_requests_inflight=0,
            profiling="false",
        )

    def _start_controller_manager(self) -> None:
        batch_period = "1s" if self.simulate_nodes else "0s"  # 0 is the default
        self.start_tool(
            "kube-controller-manager",
            **self._component("kube-controller-manager"),
            use_service_account_credentials="true",
            root_ca_file=self.authority.ca,
            service_account_private_key_file=self.authority.key("service-accounts"),
            leader_elect="false",
            kube_api_qps=1000,
            kube_api_burst=2000,
            concurrent_job_syncs=20,
            concurrent_gc_syncs=20,
            # Default 15 s: tests would wait for the clock. Limits on steps of scaling stay.
            horizontal_pod_autoscaler_sync_period="2s",
            # Else the Service of a simulated gang is written again for each of its pods that comes
            # or goes.
            endpoint_updates_batch_period=batch_period,
            endpointslice_updates_batch_period=batch_period,
        )

    def _component(self, name: str) -> dict[str, object]:
        config = self.kubeconfig(name)
        return {
            "kubeconfig": config,
            "authentication_kubeconfig": config,
            "authorization_kubeconfig": config,
            "bind_address": "127.0.0.1",
            # No client needs this port, and another process could take a free port first.
            "secure_port": 0,
        }

    def _start_scheduler(self) -> None:
        arguments = self._component("kube-scheduler")
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(arguments.pop("kubeconfig")),
                "qps": 1000,
                "burst": 2000,
            },
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
        }
        self.start_tool(
            "kube-scheduler",
            **arguments,
            v=3,
            config=self.write_json("scheduler.json", configuration),
        )


@contextmanager
def running(*tools: str, scale: Scale | None = None) -> Generator[ControlPlane]:
    """Runs a control plane of the caller's own, in a new folder. `tools` must be built, too."""
    missing = missing_tools(*tools)
    require(not missing, f"`make tools` has not built {', '.join(missing)}")
    plane = ControlPlane(Path(tempfile.mkdtemp(prefix="holdfast-plane-")), scale)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(plane.folder, ignore_errors=True)
