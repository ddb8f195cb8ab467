"""The addresses of Services, as kube-proxy serves them: each connection goes to a ready pod.

A listener of this host for each; they are addresses of the lab's bridge while a test serves them.
The API server is reached in the same way, as the address of every pod's environment names it.
"""

# kube-proxy itself would write iptables of this host: infra/decisions/0189.

import itertools
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.inference.proxy.endpoints import choose_endpoints
from tests.cluster.sim.pki import LOCAL, SERVICE_IP
from workloads.library.tests.node.lab.google import forwarding
from workloads.library.tests.node.lab.lab import Lab

Target = tuple[str, int]
API_PORT = 443


@contextmanager
def serve_api_server(lab: Lab) -> Generator[None]:
    """Serves the Service `kubernetes`, whose address the kubelet gives to every container."""
    target = (LOCAL, lab.plane.port)

    def connect() -> socket.socket:
        return socket.create_connection(target)

    with _address(lab, SERVICE_IP), forwarding((SERVICE_IP, API_PORT), connect):
        yield


@contextmanager
def serve(lab: Lab, namespace: str, name: str) -> Generator[Target]:
    """Serves a Service at its own address and port."""
    spec = lab.api.get(f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]
    target = (spec["clusterIP"], spec["ports"][0]["port"])
    folder = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    turns = itertools.count()

    def connect() -> socket.socket:
        slices = lab.api.items(folder, labelSelector=f"kubernetes.io/service-name={name}")
        endpoints = choose_endpoints(slices)
        endpoint = endpoints[next(turns) % len(endpoints)]
        return socket.create_connection((endpoint.address, endpoint.port))

    with _address(lab, target[0]), forwarding(target, connect):
        yield target


@contextmanager
def _address(lab: Lab, address: str) -> Generator[None]:
    """Gives this host an address, which ends with the bridge at the latest."""
    words = [f"{address}/32", "dev", lab.bridge.name]
    subprocess.run(["ip", "address", "add", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "address", "delete", *words], check=True)
