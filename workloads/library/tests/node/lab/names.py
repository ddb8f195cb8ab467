"""The names of pods behind a headless Service, as the cluster's DNS has them: by the EndpointSlices
that are written.

A datagram server on the lab's bridge; pods with an address of their own are given it by their
kubelet.
"""

import socketserver
import struct
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import IPv4Address

from holdfast.clients.api import Api
from workloads.library.tests.node.lab.config import CLUSTER_DOMAIN
from workloads.library.tests.node.lab.google import listening
from workloads.library.tests.node.lab.lab import Lab

PORT = 53
_HEADER = 12
_QUESTION = 4
_ADDRESS = 1
_ANSWERED = 0x8580  # an authority's answer; 3: no such name
_UNKNOWN = 0x8583
_TTL_S = 1


@contextmanager
def served(lab: Lab) -> Generator[None]:
    class Names(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            datagram, endpoint = self.request
            endpoint.sendto(answer(lab.api, datagram), self.client_address)

    class Listener(socketserver.ThreadingUDPServer):
        allow_reuse_address = True
        daemon_threads = True

    with listening(Listener((lab.bridge.address, PORT), Names)):
        yield


def answer(api: Api, datagram: bytes) -> bytes:
    """Answers a DNS question; a known name has records only for its IPv4 address."""
    name, end = _name(datagram)
    kind = struct.unpack_from("!H", datagram, end)[0]
    addresses = _addresses(api, name)
    given = addresses if kind == _ADDRESS else []
    flags = _ANSWERED if addresses else _UNKNOWN
    header = datagram[:2] + struct.pack("!5H", flags, 1, len(given), 0, 0)
    records = (
        struct.pack("!3HIH", 0xC00C, _ADDRESS, 1, _TTL_S, 4) + IPv4Address(address).packed
        for address in given
    )
    return header + datagram[_HEADER : end + _QUESTION] + b"".join(records)


def _name(datagram: bytes) -> tuple[str, int]:
    """Returns the name of the only question, and the position of its type."""
    labels = list[str]()
    position = _HEADER
    while length := datagram[position]:
        labels.append(datagram[position + 1 : position + 1 + length].decode("ascii"))
        position += 1 + length
    return ".".join(labels).lower(), position + 1


def _addresses(api: Api, name: str) -> list[str]:
    """Returns the address of HOST.SERVICE.NAMESPACE.svc, or all those of SERVICE.NAMESPACE.svc.

    A Service lists a pod that is not ready only if it publishes such pods.
    """
    if not name.endswith(f".svc.{CLUSTER_DOMAIN}"):
        return []
    first, _, rest = name.removesuffix(f".svc.{CLUSTER_DOMAIN}").partition(".")
    service, _, namespace = rest.rpartition(".")
    is_whole = not service
    service = service or first
    if not namespace or "." in service:
        return []
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    slices = api.items(path, labelSelector=f"kubernetes.io/service-name={service}")
    listed = []
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.get("endpoints") or ():
            listed.append(endpoint)
    addresses: list[str] = []
    for endpoint in listed:
        is_ready = endpoint.get("conditions", {}).get("ready") is not False
        if is_ready and (is_whole or endpoint.get("hostname") == first):
            addresses += endpoint["addresses"]
    return addresses
