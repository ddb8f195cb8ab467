"""A stand-in for GKE's managed metrics adapter: the API of custom metrics, as autoscalers read it.

It knows only metrics that an AutoscalingMetric of the cluster names, and only pods that this
object selects. The value of a pod is its share of the load that a test sets.
"""

import json
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.clients.api import Api, Object
from tests.cluster.sim.host import Host
from tests.support import HttpServer

VERSION = "custom.metrics.k8s.io/v1beta2"
METRICS = "/apis/autoscaling.gke.io/v1beta1/namespaces/{}/autoscalingmetrics"
NOT_FOUND = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "code": 404,
}
NAME = "gke-metrics"
NAMESPACE = "kube-system"


class Adapter:
    def __init__(self, api: Api) -> None:
        self._api = api
        self.load: dict[str, float] = {}
        """Deployment, by the label of its pods -> requests that all of them have at once."""

    def answer(self, url: str) -> tuple[int, Object]:
        path = unquote(urlsplit(url).path)
        if not path.startswith(f"/apis/{VERSION}"):
            return 404, NOT_FOUND
        path = path.removeprefix(f"/apis/{VERSION}").strip("/")
        if not path:
            return 200, self._list_resources()
        query = parse_qs(urlsplit(url).query)
        _, namespace, _, _, metric = path.split("/", 4)
        return self._read_metric(namespace, metric, query.get("labelSelector", [""])[0])

    def _list_resources(self) -> Object:
        resource = {
            "name": "pods/any",
            "singularName": "",
            "namespaced": True,
            "kind": "MetricValueList",
            "verbs": ["get"],
        }
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": VERSION,
            "resources": [resource],
        }

    def _read_metric(self, namespace: str, metric: str, selector: str) -> tuple[int, Object]:
        labels = self._find_labels(namespace, metric)
        if labels is None:
            return 404, NOT_FOUND
        pods: list[Object] = []
        path = f"/api/v1/namespaces/{namespace}/pods"
        for pod in self._api.items(path, labelSelector=selector):
            is_running = pod["status"].get("phase") == "Running"
            if is_running and labels.items() <= pod["metadata"]["labels"].items():
                pods.append(pod)
        load = self.load.get(selector, 0.0)
        items = []
        for pod in pods:
            items.append(_make_value(pod, metric, load / len(pods)))
        listing = {
            "kind": "MetricValueList",
            "apiVersion": VERSION,
            "metadata": {},
        }
        return 200, listing | {"items": items}

    def _find_labels(self, namespace: str, metric: str) -> dict[str, str] | None:
        """Returns the labels of the pods that have a metric, or None if no object names it."""
        group, _, rest = metric.partition("|")
        owner, _, name = rest.partition("|")
        if group != "autoscaling.gke.io":
            return None
        source = self._api.find(f"{METRICS.format(namespace)}/{owner}")
        for entry in source["spec"]["metrics"] if source else ():
            for container in entry["pod"]["containers"]:
                if any(gauge["gauge"]["name"] == name for gauge in container["metrics"]):
                    return entry["pod"]["selector"]["matchLabels"]
        return None


def _make_value(pod: Object, metric: str, value: float) -> Object:
    described = {"kind": "Pod", "apiVersion": "v1"}
    described |= {key: pod["metadata"][key] for key in ("namespace", "name")}
    return {
        "describedObject": described,
        "metric": {"name": metric, "selector": None},
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": f"{value * 1000:.0f}m",
    }


@contextmanager
def running(api: Api, host: Host) -> Generator[Adapter]:
    """Serves the API on this machine; the API server passes its requests on."""
    adapter = Adapter(api)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = adapter.answer(self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    host.authority.issue(NAME)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(host.authority.certificate(NAME), host.authority.key(NAME))
    server = HttpServer((host.address, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    bodies = _make_objects(host.address, server.server_port)
    try:
        for body in bodies:
            api.apply(api.path_of(body), body)
        yield adapter
    finally:
        for body in bodies:
            api.delete(api.path_of(body))
        server.shutdown()
        thread.join()
        server.server_close()


def _make_objects(address: str, port: int) -> list[Object]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "type": "ExternalName",
            "externalName": address,
            "ports": [{"port": port}],
        },
    }
    group, version = VERSION.split("/")
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {
                "name": NAME,
                "namespace": NAMESPACE,
                "port": port,
            },
        },
    }
    return [service, registration]
