"""Tests of who reaches a service: network policies of the platform and of the service together."""

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.kubernetes import LABEL_NAME, LABEL_NAMESPACE
from holdfast.vocabulary.serving import PORT
from tests.platforms import with_images
from workloads.library.tests.services import example_services
from workloads.manifests import rendering

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pod:
    namespace: str
    labels: dict[str, str]


def may_call(bodies: list[Object], source: Pod, target: Pod) -> bool:
    """Returns whether the policies of both sides let a pod connect to another one."""
    may_leave = is_open(bodies, "egress", source, target)
    return may_leave and is_open(bodies, "ingress", target, source)


def is_open(bodies: list[Object], direction: str, pod: Pod, peer: Pod) -> bool:
    for body in bodies:
        spec = body.get("spec", {})
        is_policy = body["kind"] == "NetworkPolicy"
        if not is_policy or body["metadata"]["namespace"] != pod.namespace:
            continue
        if not has_labels(spec["podSelector"], pod.labels):
            continue
        for rule in spec.get(direction, ()):
            peers = rule["to"] if direction == "egress" else rule["from"]
            is_port = PORT in [entry["port"] for entry in rule["ports"]]
            if is_port and any(is_peer(item, pod.namespace, peer) for item in peers):
                return True
    return False


def is_peer(item: Object, home: str, pod: Pod) -> bool:
    if "ipBlock" in item:
        return False
    if not has_labels(item.get("podSelector", {}), pod.labels):
        return False
    if "namespaceSelector" not in item:
        return pod.namespace == home
    return has_labels(item["namespaceSelector"], {LABEL_NAMESPACE: pod.namespace})


def has_labels(selector: Object, labels: dict[str, str]) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    required = selector.get("matchLabels", {})
    return required.items() <= labels.items()


def list_objects(name: str) -> list[Object]:
    """Returns the objects of the platform, and of an example service in it."""
    platform = rendering.platform(RenderContext(with_images("example")))
    return platform + example_services.render(example_services.read(name))


def make_pod(bodies: list[Object], name: str) -> Pod:
    deployment = example_services.find(bodies, "Deployment", name)
    template = deployment["spec"]["template"]
    return Pod(namespace="serving", labels=template["metadata"]["labels"])


@pytest.mark.parametrize(
    ("namespace", "may"), [("batch", True), ("serving", True), ("training", False)]
)
def test_callers_reach_only_the_proxies(namespace: str, may: bool) -> None:
    """A job of a user has no labels that a policy of the platform knows."""
    bodies = list_objects("chat")
    job = Pod(namespace=namespace, labels={LABEL_NAME: "my-job"})
    assert may_call(bodies, job, make_pod(bodies, "chat-proxy")) is may
    for part in ("chat-base", "chat-overflow", "chat-router"):
        assert not may_call(bodies, job, make_pod(bodies, part)), part


def test_any_job_reaches_a_service_for_the_cluster() -> None:
    bodies = list_objects("scores")
    proxies = make_pod(bodies, "scores-proxy")
    for namespace in ("training", "batch"):
        job = Pod(namespace=namespace, labels={})
        assert may_call(bodies, job, proxies), namespace
    exporter = Pod(namespace="monitoring", labels={})
    assert not may_call(bodies, exporter, proxies)
