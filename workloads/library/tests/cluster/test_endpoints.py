"""The proxy's watcher with a real API server: EndpointSlices that its controller writes, read
with rendered rights.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Api, Object
from holdfast.inference.proxy.endpoints import Follower
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import PORT
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.workloads.manifests.rendered import find_object
from workloads.library.tests.cluster.test_deadline import Become
from workloads.library.tests.cluster.test_deadline import become as become
from workloads.library.tests.cluster.test_deadline import node as node


@pytest.fixture
def endpoints_file(world: World, api: Api, become: Become, tmp_path: Path) -> Iterator[Path]:
    """Yields the file that a proxy reads, and that a watcher writes with the account and the rights
    of the rendered proxy.
    """
    become(world.name, "proxy")
    for kind, name in (("Role", "endpoints"), ("RoleBinding", "endpoints"), ("Service", "server")):
        text = json.dumps(find_object("example", kind, name, NAMESPACE_SERVING))
        body: Object = json.loads(
            text.replace(f'"namespace": "{NAMESPACE_SERVING}"', f'"namespace": "{world.name}"')
        )
        api.apply(api.path_of(body), body)
    out = tmp_path / "servers.json"
    follower = Follower(
        namespace=world.name,
        service="server",
        cluster="servers",
        out=out,
    )
    follower.start()
    yield out
    follower.stop.set()  # it may sit in a read of the watch; the namespace's end wakes it


def start(world: World, node: str, name: str, address: str) -> None:
    labels = find_object("example", "Service", "server", NAMESPACE_SERVING)["spec"]["selector"]
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "image": "none"}],
    }
    world.create_pod(
        name,
        {
            "metadata": {"labels": labels},
            "spec": spec,
        },
    )
    report(
        world,
        name,
        ready=True,
        podIP=address,
        podIPs=[{"ip": address}],
        phase="Running",
    )


def report(world: World, name: str, *, ready: bool, **status: object) -> None:
    """Reports what the readiness probe found, as a kubelet does."""
    condition = {
        "type": "Ready",
        "status": str(ready),
    }
    world.api.merge(
        f"{world.path('pods')}/{name}/status",
        {
            "status": {
                "conditions": [condition],
                **status,
            }
        },
    )


def addresses(out: Path) -> set[tuple[str, int]]:
    if not out.exists():
        return set()
    (assignment,) = json.loads(out.read_text())["resources"]
    addresses = set()
    for endpoint in assignment["endpoints"][0]["lb_endpoints"]:
        socket_address = endpoint["endpoint"]["address"]["socket_address"]
        addresses.add((socket_address["address"], socket_address["port_value"]))
    return addresses


def test_proxy_endpoints_follow_pod_readiness(
    world: World, api: Api, node: str, endpoints_file: Path
) -> None:
    first = ("10.9.0.1", PORT)
    two = ("10.9.0.2", PORT)

    def follows(wanted: set[tuple[str, int]], why: str) -> None:
        until(why, lambda: addresses(endpoints_file) == wanted)

    start(world, node, "one", first[0])
    follows({first}, "the first server gets requests")
    start(world, node, "two", two[0])
    follows({first, two}, "both get requests")
    report(world, "two", ready=False)
    follows({first}, "a notice on Spot: not ready, and nothing else")
    report(world, "two", ready=True)
    follows({first, two}, "ready again")
    api.delete(f"{world.path('pods')}/two", gracePeriodSeconds=600)
    follows({first}, "deleted: it terminates, and is ready still")
    api.delete(f"{world.path('pods')}/one", gracePeriodSeconds=600)
    follows({first, two}, "all terminate and serve: better than nobody")
    for name in ("one", "two"):
        api.delete(f"{world.path('pods')}/{name}", gracePeriodSeconds=0)
    follows(set(), "gone")
