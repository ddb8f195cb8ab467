"""HF720 to HF724: topics, subscriptions and triggers of scalers."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near

DOC_PUBSUB = "https://cloud.google.com/config-connector/docs/reference/resource-docs/pubsub"
DOC_DEAD_LETTERS = "https://cloud.google.com/pubsub/docs/handling-failures"
DOC_KEDA = "https://keda.sh/docs/latest/reference/scaledobject-spec/"
_CONNECTOR = ".cnrm.cloud.google.com/"
_SUBSCRIPTION = re.compile(r"projects/[\w-]{1,60}/subscriptions/([A-Za-z][\w.~+%-]{2,254})")
_VARIABLE = re.compile(r"(^|_)(PUBSUB_)?SUBSCRIPTION(_NAME|_ID)?$")
_FEW_DELIVERIES = 10
_TOPIC = re.compile(r"--(?:pubsub[-_])?subscription(?:[-_](?:id|name))?[= ]projects/[\w-]+/topics/")
_NEAR = 0.7


def _subscription(topic: str, deadline: int = 600) -> str:
    return f"""\
apiVersion: pubsub.cnrm.cloud.google.com/v1beta1
kind: PubSubTopic
metadata: {{name: documents, namespace: research}}
---
apiVersion: pubsub.cnrm.cloud.google.com/v1beta1
kind: PubSubSubscription
metadata: {{name: embed, namespace: research}}
spec:
  topicRef: {{name: {topic}}}
  ackDeadlineSeconds: {deadline}
  messageRetentionDuration: 604800s
"""


@rule(
    "HF720",
    "resource-reference-unknown",
    Severity.ERROR,
    on=Object,
    what="An object of Config Connector refers to another one that its file has by another name.",
    why="It waits for the other one: the subscription or the right is never made.",
    source=DOC_PUBSUB,
    fix="write the name of the object; external for one outside the cluster",
    bad=_subscription("document"),
    good=_subscription("documents"),
)
def resource_reference_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    if _CONNECTOR not in as_text(obj.body.get("apiVersion")):
        return
    for path, reference in _list_references(obj.spec, ("spec",)):
        name = as_text(reference.get("name"))
        kind = as_text(reference.get("kind")) or _guess_kind(str(path[-1]))
        namespace = as_text(reference.get("namespace")) or obj.namespace
        if not name or "$" in name or not kind or context.index.find(kind, name, namespace):
            continue
        neighbors: list[str] = []
        for item in context.index.list_namespace(kind, namespace):
            if item.file == obj.file:
                neighbors.append(item.name)
        near_name = find_near(name, neighbors, _NEAR)
        if near_name or len(neighbors) == 1:
            message = f"no {kind} {name}; its file has {near_name or neighbors[0]}"
            yield Hit((*path, "name"), message)


def _list_references(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields each reference to another resource with its path."""
    if len(path) > 8:
        return
    if isinstance(value, dict):
        for key, child in value.items():
            if str(key).endswith("Ref") and isinstance(child, dict):
                yield (*path, key), child
            yield from _list_references(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value[:50]):
            yield from _list_references(child, (*path, index))


def _guess_kind(field: str) -> str:
    kinds = {"topicRef": "PubSubTopic", "deadLetterTopicRef": "PubSubTopic"}
    return kinds.get(field, "")


@rule(
    "HF721",
    "subscription-out-of-range",
    Severity.ERROR,
    on=Object,
    what="A subscription, or the option of its worker, has a number that Pub/Sub does not take.",
    why="The subscription is not made, and its workers wait for it.",
    source=DOC_PUBSUB,
    fix="10 to 600 seconds to acknowledge, 5 to 100 deliveries",
    bad=_subscription("documents", 900),
    good=_subscription("documents", 600),
)
def check_subscription_ranges(obj: Object, context: Context) -> Iterator[Hit]:
    for pod in obj.pods:
        for container in pod.containers:
            seconds = container.number("--ack-deadline") or container.number("--ack_deadline")
            if seconds and seconds > 600 and "subscription" in container.script:
                message = f"--ack-deadline is {seconds}; Pub/Sub takes 10 to 600 seconds"
                yield Hit(container.command_path, message)
    if obj.kind != "PubSubSubscription":
        return
    deadline = as_int(obj.spec.get("ackDeadlineSeconds"))
    if deadline is not None and not 10 <= deadline <= 600:
        yield Hit(("spec", "ackDeadlineSeconds"), f"{deadline} is not from 10 to 600")
    path = ("spec", "deadLetterPolicy", "maxDeliveryAttempts")
    attempts = as_int(dig(obj.body, *path))
    if attempts is not None and not 5 <= attempts <= 100:
        yield Hit(path, f"{attempts} is not from 5 to 100")
    topic = dig(obj.spec, "topicRef", "name")
    path = ("spec", "deadLetterPolicy", "deadLetterTopicRef", "name")
    if topic and dig(obj.body, *path) == topic:
        yield Hit(path, "dead letters go to the topic from which they came")


def _worker(name: str) -> str:
    return (
        _subscription("documents")
        + f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: worker, namespace: research}}
spec:
  containers:
  - name: main
    image: registry.example/worker:1.4
    env: [{{name: SUBSCRIPTION, value: projects/acme/subscriptions/{name}}}]
"""
    )


def _list_measured(obj: Object) -> Iterator[tuple[Path, str]]:
    """Yields the subscriptions that an autoscaler measures, each with its path."""
    for index in range(len(as_list(obj.spec.get("metrics")))):
        labels = ("spec", "metrics", index, "external", "metric", "selector", "matchLabels")
        for key, value in as_map(dig(obj.body, *labels)).items():
            if str(key).endswith("subscription_id"):
                yield (*labels, key), as_text(value)


def _check_scaler(obj: Object, context: Context) -> Iterator[Hit]:
    """Yields a subscription that an autoscaler measures and that its pods do not read."""
    kind = as_text(dig(obj.spec, "scaleTargetRef", "kind"))
    name = as_text(dig(obj.spec, "scaleTargetRef", "name"))
    workload = context.index.find(kind, name, obj.namespace)
    read = {item for _, item in _list_subscriptions(workload)} if workload else set[str]()
    for path, measured in _list_measured(obj):
        if read and measured and measured not in read:
            yield Hit(path, f"measures {measured}, and {name} reads {', '.join(sorted(read))}")


@rule(
    "HF722",
    "subscription-unknown",
    Severity.ERROR,
    on=Object,
    what="A worker or a scaler names a subscription that its file has by another name.",
    why="The worker ends with not found; the scaler reads no messages, and stays at its least.",
    source=DOC_PUBSUB,
    fix="write the name of the subscription",
    bad=_worker("embeddings"),
    good=_worker("embed"),
)
def subscription_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == SCALER:
        yield from _check_scaler(obj, context)
    if obj.kind == "ScaledObject":
        yield from _check_trigger(obj, context)
    for pod in obj.pods:
        for container in pod.containers:
            for path, text in container.list_texts():
                if _TOPIC.search(text[:4_000]):
                    yield Hit(path, "a topic, where a subscription is read")
    names: list[str] = []
    for item in context.index.list_namespace("PubSubSubscription", obj.namespace):
        if item.file == obj.file:
            names.append(as_text(item.spec.get("resourceID")) or item.name)
    for path, name in _list_subscriptions(obj) if names else ():
        if name not in names:
            near_name = find_near(name, names, _NEAR)
            if near_name or len(names) == 1:
                message = f"no subscription {name}; its file has {near_name or names[0]}"
                yield Hit(path, message)


def _check_trigger(obj: Object, context: Context) -> Iterator[Hit]:
    """Yields a subscription that a trigger of KEDA measures and that its pods do not read."""
    kind = as_text(dig(obj.spec, "scaleTargetRef", "kind")) or "Deployment"
    name = as_text(dig(obj.spec, "scaleTargetRef", "name"))
    workload = context.index.find(kind, name, obj.namespace)
    read = {item for _, item in _list_subscriptions(workload)} if workload else set[str]()
    for path, measured in _list_subscriptions(obj):
        if read and measured not in read:
            yield Hit(path, f"measures {measured}, and {name} reads {', '.join(sorted(read))}")


def _list_subscriptions(obj: Object) -> Iterator[tuple[Path, str]]:
    """Yields the names of subscriptions in variables, commands and triggers."""
    for pod in obj.pods:
        for container in pod.containers:
            for path, name, value in container.variables:
                is_plain = _VARIABLE.search(name) and re.fullmatch(r"[a-z][\w-]{2,100}", value)
                if is_plain:
                    yield path, value
            for path, text in container.list_texts():
                for match in _SUBSCRIPTION.finditer(text[:4_000]):
                    yield path, match[1]
    if obj.kind != "ScaledObject":
        return
    for index, trigger in enumerate(as_maps(obj.spec.get("triggers"))):
        for field in ("subscriptionName", "subscription"):
            text = as_text(dig(trigger, "metadata", field))
            if trigger.get("type") == "gcp-pubsub" and text:
                path = ("spec", "triggers", index, "metadata", field)
                yield path, text.rpartition("/")[2]


def _write_scaled_object(min_replicas: int) -> str:
    return f"""\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: worker
  namespace: research
spec:
  scaleTargetRef:
    name: worker
  minReplicaCount: {min_replicas}
  maxReplicaCount: 8
  triggers:
    - type: gcp-pubsub
      metadata:
        subscriptionName: documents
        value: '20'
"""


@rule(
    "HF723",
    "trigger-cannot-scale",
    Severity.ERROR,
    on=Object,
    kinds=("ScaledObject",),
    what="The bounds or the triggers of a ScaledObject cannot be met.",
    why="KEDA refuses it, or never starts a pod: messages wait.",
    source=DOC_KEDA,
    fix="minReplicaCount at most maxReplicaCount; a trigger that can start the first pod",
    bad=_write_scaled_object(10),
    good=_write_scaled_object(1),
)
def trigger_cannot_scale(obj: Object, context: Context) -> Iterator[Hit]:
    min_replicas = as_int(obj.spec.get("minReplicaCount")) or 0
    max_replicas = as_int(obj.spec.get("maxReplicaCount"))
    if max_replicas is not None and min_replicas > max_replicas:
        yield Hit(
            ("spec", "minReplicaCount"),
            f"minReplicaCount {min_replicas} is above maxReplicaCount {max_replicas}",
        )
    if max_replicas is not None and max_replicas < 1:
        yield Hit(("spec", "maxReplicaCount"), f"maxReplicaCount {max_replicas} lets no pod run")
    idle = as_int(obj.spec.get("idleReplicaCount"))
    if idle is not None and idle >= min_replicas:
        message = f"idleReplicaCount {idle} is not below minReplicaCount {min_replicas}"
        yield Hit(("spec", "idleReplicaCount"), message)
    triggers = as_maps(obj.spec.get("triggers"))
    kinds = {as_text(trigger.get("type")) for trigger in triggers}
    if min_replicas == 0 and kinds and kinds <= {"cpu", "memory"}:
        yield Hit(("spec", "triggers"), "CPU and memory start no first pod: least is 0")


def _dead_letters(attempts: int) -> str:
    return f"""\
env: [{{name: SUBSCRIPTION, value: embed}}]
---
apiVersion: pubsub.cnrm.cloud.google.com/v1beta1
kind: PubSubSubscription
metadata: {{name: embed, namespace: training}}
spec:
  topicRef: {{name: documents}}
  messageRetentionDuration: 604800s
  deadLetterPolicy: {{deadLetterTopicRef: {{name: failed}}, maxDeliveryAttempts: {attempts}}}
"""


@rule(
    "HF724",
    "dead-letters-of-evictions",
    Severity.WARNING,
    on=Pod,
    what="A worker on Spot reads a subscription that gives messages up after a few deliveries.",
    why="Each eviction counts as a failed delivery: good messages are put aside unread.",
    source=DOC_DEAD_LETTERS,
    fix="maxDeliveryAttempts of 20 or more, and count failures in the worker",
    base="container",
    bad=_dead_letters(5),
    good=_dead_letters(100),
)
def check_dead_letters(pod: Pod, context: Context) -> Iterator[Hit]:
    if not context.place(pod).interruptible:
        return
    for path, name in _list_subscriptions(pod.owner):
        item = context.index.find("PubSubSubscription", name, pod.owner.namespace)
        policy = as_map(dig(item.spec, "deadLetterPolicy")) if item else {}
        attempts = as_int(policy.get("maxDeliveryAttempts")) or (5 if policy else None)
        if attempts is not None and attempts < _FEW_DELIVERIES:
            yield Hit(path, f"{name} gives a message up after {attempts} deliveries")
            return
