"""Explains a running service: its replicas, its scalers, its address and a first request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.manifests.gateway import EXTERNAL_CLASS, GATEWAY_API
from holdfast.manifests.serving_proxy import KEYS_VOLUME
from holdfast.platform import Platform
from holdfast.services import live_service
from holdfast.services.render.manifests import ANNOTATION_SOURCE
from holdfast.services.replica_start import ReplicaStart, find_newest_start
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import LABEL_SERVICE, LABEL_TIER, PORT

SCHEMA = "holdfast.service-explanation/1"
_TEXTS_ITEM = '{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}]}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    name: str
    namespace: str
    source: str
    """The model or the predictor."""
    parts: dict[str, str]
    """Deployment -> its replicas in words."""
    starts: dict[str, ReplicaStart]
    """Deployment of servers -> the start of its newest replica."""
    scalers: dict[str, str]
    """Scaler -> why it does not scale; only those with a problem."""
    address: str
    curl: str

    def lines(self) -> list[tuple[str, str]]:
        """Return name and text of each line."""
        lines = [("service", f"{self.name} in {self.namespace} serves {self.source}")]
        lines += self.parts.items()
        for start in self.starts.values():
            lines.append(("start", str(start)))
        lines += [("scaler", f"{name}: {reason}") for name, reason in self.scalers.items()]
        return [*lines, ("address", self.address), ("try", self.curl)]

    def as_json(self) -> dict[str, Any]:
        starts: dict[str, dict[str, Any]] = {}
        for name, start in self.starts.items():
            starts[name] = start.as_json()
        return {
            "schema": SCHEMA,
            "name": self.name,
            "namespace": self.namespace,
            "source": self.source,
            "parts": self.parts,
            "starts": starts,
            "scalers": self.scalers,
            "address": self.address,
            "curl": self.curl,
        }


def explain(api: Api, platform: Platform, name: str, namespace: str = "") -> Explanation | None:
    """Explain a service, or return None if no service of this name runs, or the user may not read
    it.
    """
    service = live_service.find_in(api, platform, name, namespace)
    if service is None:
        return None
    home = service["metadata"]["namespace"]
    annotations: dict[str, str] = service["metadata"].get("annotations") or {}
    source = annotations.get(ANNOTATION_SOURCE, "")
    selector = f"{LABEL_SERVICE}={name}"
    deployments = list(
        api.items(f"/apis/apps/v1/namespaces/{home}/deployments", labelSelector=selector)
    )
    scalers = api.items(
        f"/apis/autoscaling/v2/namespaces/{home}/horizontalpodautoscalers", labelSelector=selector
    )
    has_keys = any(mounts_keys(body) for body in deployments)
    address, clients = find_address(api, name, home)
    if has_keys:
        clients += ", with a key"
    return Explanation(
        name=name,
        namespace=home,
        source=source,
        parts={body["metadata"]["name"]: _describe_replicas(body) for body in deployments},
        starts=_find_starts(api, deployments),
        scalers=dict(_list_troubles(scalers)),
        address=f"{address}, {clients}",
        curl=make_curl(
            name,
            source,
            address,
            has_keys=has_keys,
        ),
    )


def find_address(api: Api, name: str, namespace: str) -> tuple[str, str]:
    """Return the URL that most clients can use, and from where they can use it."""
    inside = f"http://{name}.{namespace}.svc.cluster.local:{PORT}"
    pods = "from pods of the namespaces that may call"
    if namespace != NAMESPACE_SERVING:  # people of a team may not read load balancers
        return inside, pods
    folder = f"/apis/{GATEWAY_API}/namespaces/{namespace}/gateways"
    gateway = api.find(f"{folder}/{name}")
    if gateway is None:
        return inside, pods
    addresses = (gateway.get("status") or {}).get("addresses") or ()
    if not addresses:
        return inside, f"{pods}; its load balancer has no address yet"
    (listener,) = gateway["spec"]["listeners"]
    host = listener.get("hostname") or addresses[0]["value"]
    clients = "from the VPC"
    if gateway["spec"]["gatewayClassName"] == EXTERNAL_CLASS:
        clients = "from the internet"
    if "hostname" in listener:
        clients += f"; its DNS record names {addresses[0]['value']}"
    return f"{listener['protocol'].lower()}://{host}", clients


def _describe_replicas(deployment: Object) -> str:
    replicas = deployment["spec"].get("replicas", 0)
    idle_minutes = live_service.find_idle_minutes(deployment)
    if idle_minutes and not replicas:
        return f"asleep after {idle_minutes} minutes without a request; the next one starts it"
    status: dict[str, Any] = deployment.get("status") or {}
    ready = status.get("readyReplicas", 0)
    new = status.get("updatedReplicas", 0)
    text = f"{ready} of {replicas} ready"
    if new < replicas:
        text += f"; roll-out: {new} of {replicas} are of the new version"
    if ready < replicas:
        text += f"; why: holdfast explain {deployment['metadata']['name']}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            text += f"; no pod: {condition.get('message', '')}"
    return text


def _find_starts(api: Api, deployments: list[Object]) -> dict[str, ReplicaStart]:
    """Return the start of the newest replica of each Deployment of servers."""
    starts: dict[str, ReplicaStart] = {}
    for deployment in deployments:
        template = deployment["spec"]["template"]
        if LABEL_TIER not in template["metadata"]["labels"]:
            continue
        metadata = deployment["metadata"]
        name = metadata["name"]
        pods = api.items(
            f"/api/v1/namespaces/{metadata['namespace']}/pods",
            labelSelector=f"{LABEL_NAME}={name}",
        )
        start = find_newest_start(pods)
        if start is not None:
            starts[name] = start
    return starts


def _list_troubles(scalers: Any) -> Iterator[tuple[str, str]]:
    for scaler in scalers:
        status: dict[str, Any] = scaler.get("status") or {}
        for condition in status.get("conditions") or ():
            is_inactive = (condition["type"], condition["status"]) == ("ScalingActive", "False")
            # An autoscaler is inactive on purpose while its target is asleep.
            if is_inactive and condition.get("reason") != "ScalingDisabled":
                yield scaler["metadata"]["name"], str(condition.get("message", ""))


def mounts_keys(deployment: Object) -> bool:
    """Return whether these are proxies that ask callers for a key."""
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume["name"] == KEYS_VOLUME for volume in volumes)


def make_curl(name: str, source: str, address: str, *, has_keys: bool) -> str:
    """Return one command that sends a first request, with the key of a caller if one is needed.

    Without keys, Google's proxy gets a token that says who you are.
    """
    if source.startswith("gs://"):
        path = "/v1/completions"
        body = f'{{"model": "{name}", "prompt": "Hello", "max_tokens": 16, "stream": true}}'
    else:
        path = f"/v2/models/{name}/infer"
        body = _TEXTS_ITEM
    token = ""
    if has_keys:
        token = ' -H "x-api-key: $KEY"'
    elif address.startswith("https"):
        token = ' -H "authorization: Bearer $(gcloud auth print-identity-token)"'
    return f"curl -sS {address}{path}{token} -H 'content-type: application/json' -d '{body}'"
