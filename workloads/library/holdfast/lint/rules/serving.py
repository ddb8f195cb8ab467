"""HF14x: servers of requests on machines that are taken away. Source: infra/decisions/0048 and 0049."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from holdfast.contract.serving import (
    KEEP_ALIVE_S,
    PROBE_FAILURES,
    PROBE_PERIOD_S,
    drain_budget,
    sidecar_budget,
)
from holdfast.lint.finding import Hit, Severity, constant
from holdfast.lint.objects import Container, Object, Pod, as_int, as_list, as_map, as_text, dig, quantity
from holdfast.lint.registry import Context, rule
from holdfast.lint.shell import slept_s

ANNOTATION_NEG = "cloud.google.com/neg"
OVERFLOW_OF = "holdfast.dev/overflow-of"
LOAD_BALANCER_S = 600  # how long Google's proxies keep a backend connection; fixed
_SOURCE = "infra/decisions/0048"
_CONTRACT = "holdfast.contract.serving"


def _spot(container: str, *, service: str = "") -> str:
    """A Service and its Deployment on Spot, with one container."""
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving{service}}}
spec: {{selector: {{app: server}}, ports: [{{port: 8080}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: server, namespace: serving, annotations: {{holdfast.dev/overflow-of: base}}}}
spec:
  selector: {{matchLabels: {{app: server}}}}
  template:
    metadata: {{labels: {{app: server}}}}
    spec:
      terminationGracePeriodSeconds: 15
      nodeSelector: {{cloud.google.com/gke-spot: "true", holdfast.dev/pool-class: spot-l4}}
      tolerations: [{{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}}]
      containers: [{{name: main, image: server{container}}}]
"""


_VLLM = {("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")}
_READY = "readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}, periodSeconds: 1, failureThreshold: 1}"


def services(pod: Pod, context: Context) -> list[Object]:
    """Services that send requests to these pods."""
    within = context.world.within("Service", pod.owner.namespace)
    # Names for peers, from before they are ready: readiness takes nobody out of such a Service, nor should it.
    found = [each for each in within if each.spec.get("publishNotReadyAddresses") is not True]
    chosen = ((each, as_map(each.spec.get("selector"))) for each in found)
    return [each for each, wanted in chosen if wanted and all(pod.labels.get(k) == v for k, v in wanted.items())]


def _served_on_spot(pod: Pod, context: Context) -> bool:
    return context.place(pod).on_spot is not None and not all(map(_names_only, services(pod, context)))


def _names_only(service: Object) -> bool:
    """It gives members of a gang their names, from before they are ready: nothing balances requests over them."""
    return service.spec.get("clusterIP") == "None" and service.spec.get("publishNotReadyAddresses") is True


@rule(
    "HF140", "readiness-too-slow-for-spot", Severity.ERROR, on=Pod,
    what="A Spot pod behind a Service without a readiness probe that fails within a second.",
    why="A Spot notice takes no pod out of a Service; a proxy that asks for its readiness does. Until then requests go to"
        " a pod that is about to die.",
    source=_SOURCE, fix="periodSeconds: 1, failureThreshold: 1, and a server that answers 503 from SIGTERM on",
    bad=_spot(", readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 10}"),
    good=_READY, base="serving-container",
)  # fmt: skip
def readiness_too_slow(pod: Pod, context: Context) -> Iterator[Hit]:
    if not _served_on_spot(pod, context):
        return
    basis = constant(_CONTRACT, "PROBE_PERIOD_S", f"a probe every {PROBE_PERIOD_S} s, {PROBE_FAILURES} failure")
    probes = [(each, each.body.get("readinessProbe")) for each in pod.containers]
    stated = [(each, as_map(probe)) for each, probe in probes if probe]
    if not stated:
        yield Hit((*pod.at, "containers"), "no container has a readiness probe: nothing ends its traffic", basis)
    for container, probe in stated:
        slow_s = (as_int(probe.get("periodSeconds")) or 10) * (as_int(probe.get("failureThreshold")) or 3)
        if slow_s > PROBE_PERIOD_S * PROBE_FAILURES:
            yield Hit((*container.path, "readinessProbe"), f"is noticed after {slow_s} s only", basis)


@rule(
    "HF141", "readiness-by-exec", Severity.ERROR, on=Pod,
    what="A pod behind a Service with an exec readiness probe.",
    why="On Kubernetes 1.35, the first with the window of 120 s, exec probes do nothing while a pod terminates"
        " (kubernetes#140881): the pod stays in its Service to the end.",
    source="https://github.com/kubernetes/kubernetes/issues/140881", fix="probe with httpGet",
    bad=_spot(", readinessProbe: {exec: {command: [cat, /ready]}, periodSeconds: 1, failureThreshold: 1}"),
    good=_READY, base="serving-container",
)  # fmt: skip
def readiness_by_exec(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers if _served_on_spot(pod, context) else []:
        if dig(container.body, "readinessProbe", "exec") is not None:
            yield Hit((*container.path, "readinessProbe", "exec"), "is not run while the pod terminates")


@rule(
    "HF142", "request-longer-than-drain", Severity.ERROR, on=Pod,
    what="A server lets a request take longer than a Spot window leaves for it.",
    why="It accepts until endpoints have moved, and what it accepted last must still be answered before the kill.",
    source=_SOURCE, fix="lower --longest-request, or use a pool with the longer window",
    bad=_spot(f", {_READY}, command: [python, -m, holdfast, serve, run, --longest-request, '30']"),
    good="command: [python, -m, holdfast, serve, run, --longest-request, '5']", base="serving-container",
)  # fmt: skip
def request_longer_than_drain(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    for container in pod.containers if pool else []:
        asked = _option(container, "--longest-request")
        if pool and "serve" in container.words and asked is not None:
            budget = drain_budget(pool.window.pod_s)
            if asked > budget.longest_request_s:
                text = f"{asked:g} s, and the window leaves {budget.longest_request_s:g} s"
                yield Hit((*container.path, "command"), text, context.platform.window_basis(pool))


def _option(container: Container, name: str) -> float | None:
    words = container.words
    for index, found in enumerate(words):
        key, _, value = found.partition("=")
        if key == name:
            return quantity(value or (words[index + 1] if index + 1 < len(words) else ""))
    return None


@rule(
    "HF143", "load-balancer-sends-to-spot", Severity.ERROR, on=Object,
    what="A Service with network endpoint groups, or of type LoadBalancer, selects pods on Spot.",
    why="Google's endpoint groups drop an endpoint when it terminates or is gone, never because it is not ready, and its"
        " load balancers do not retry POST: each preemption loses requests.",
    source="infra/decisions/0049", fix="let it select a proxy on demand, which asks the Spot pods for their readiness",
    bad=_spot(f", {_READY}", service=f", annotations: {{{ANNOTATION_NEG}: '{{\"ingress\": true}}'}}"),
    good="metadata: {labels: {app: server}}", base="serving",
)  # fmt: skip
def load_balancer_sends_to_spot(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "Service" or not _balanced(obj):
        return
    pods = context.world.selected(obj.namespace, {"matchLabels": obj.spec.get("selector")})
    if obj.spec.get("selector") and any(context.place(pod).on_spot for pod in pods):
        yield Hit(("spec", "selector"), "leads a load balancer of the cloud to pods that vanish")


def _balanced(service: Object) -> bool:
    annotated = ANNOTATION_NEG in as_map(service.metadata.get("annotations"))
    return annotated or as_text(service.spec.get("type")) == "LoadBalancer"


@rule(
    "HF144", "keep-alive-shorter-than-load-balancer", Severity.WARNING, on=Pod,
    what="A server behind a load balancer of Google closes idle connections sooner than it.",
    why=f"Its proxies keep a connection for {LOAD_BALANCER_S} s; one that the server has closed is a request without an"
        " answer: backend_connection_closed_before_data_sent_to_client.",
    source="https://cloud.google.com/load-balancing/docs/https#timeouts_and_retries",
    fix=f"keep connections for {KEEP_ALIVE_S} s",
    bad="""\
apiVersion: v1
kind: Service
metadata: {name: server, namespace: serving, annotations: {cloud.google.com/neg: '{"ingress": true}'}}
spec: {selector: {app: server}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: serving, labels: {app: server}}
spec: {containers: [{name: main, image: server, command: [uvicorn, app:app]}]}
""",
    good="command: [uvicorn, 'app:app', --timeout-keep-alive, '620']", base="serving-container",
)  # fmt: skip
def keep_alive_too_short(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers if any(map(_balanced, services(pod, context))) else []:
        kept_s = _option(container, "--timeout-keep-alive")
        if any(each.rpartition("/")[2] == "uvicorn" for each in container.words) and (kept_s or 5.0) <= LOAD_BALANCER_S:
            at = (*container.path, "command" if "command" in container.body else "args")
            yield Hit(
                at,
                f"closes idle connections after {kept_s or 5.0:g} s",
                constant(_CONTRACT, "KEEP_ALIVE_S", f"ours keep them for {KEEP_ALIVE_S} s"),
            )


@rule(
    "HF145", "vllm-drops-at-sigterm", Severity.ERROR, on=Pod,
    what="vLLM on Spot without --shutdown-timeout, or with more than the window leaves.",
    why="Its default of 0 aborts every request at SIGTERM, and from then on it refuses new ones: it needs a drain before"
        " the signal and a timeout after it.",
    source="https://docs.vllm.ai/en/latest/cli/serve/",
    fix="run `holdfast serve sidecar` beside it as its readiness and preStop hook, and set --shutdown-timeout",
    bad=_spot(f", {_READY}, command: [vllm, serve, model]"),
    good="command: [vllm, serve, model, --shutdown-timeout, '7']", base="serving-container",
)  # fmt: skip
def vllm_drops_at_sigterm(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    for container in pod.containers if pool else []:
        words = [each.rpartition("/")[2] for each in container.words]
        if not pool or not set(pairwise(words)) & _VLLM:
            continue
        hold_s, timeout_s = sidecar_budget(pool.window.pod_s)
        basis = context.platform.window_basis(pool)
        stated = _option(container, "--shutdown-timeout")
        at = (*container.path, "command" if "command" in container.body else "args")
        if stated is None or not 0 < stated <= timeout_s:
            yield Hit(at, f"--shutdown-timeout is {stated or 0:g} s, the window leaves {timeout_s:g} s", basis)
        if (slept := _pre_stop_s(container)) > hold_s:
            yield Hit((*container.path, "lifecycle", "preStop"), f"sleeps {slept:g} s of {hold_s:g} s", basis)


def _pre_stop_s(container: Container) -> float:
    hook: dict[str, Any] = as_map(dig(container.body, "lifecycle", "preStop"))
    scripted = slept_s(" ".join(map(str, as_list(dig(hook, "exec", "command")))))
    return max(float(as_int(dig(hook, "sleep", "seconds")) or 0), scripted)


@rule(
    "HF146", "overflow-without-base", Severity.ERROR, on=Object,
    what=f"{OVERFLOW_OF} names no Deployment, or one that may run on Spot itself.",
    why="When Spot is taken away at once, the base answers alone: one that goes with it is no base.",
    source="infra/decisions/0049", fix="name a Deployment of the same namespace that selects an on-demand pool",
    bad=_spot(f", {_READY}"),
    good="metadata: {labels: {app: server}}", base="serving",
)  # fmt: skip
def overflow_without_base(obj: Object, context: Context) -> Iterator[Hit]:
    wanted = as_text(as_map(obj.metadata.get("annotations")).get(OVERFLOW_OF))
    if not wanted or not obj.pods:
        return
    at = ("metadata", "annotations", OVERFLOW_OF)
    base = context.world.named("Deployment", wanted, obj.namespace)
    if base is None:
        yield Hit(at, f"there is no Deployment {wanted} among the files examined")
    elif any(context.place(pod).on_spot or not as_map(pod.spec.get("nodeSelector")) for pod in base.pods):
        yield Hit(at, f"Deployment {wanted} is not tied to machines on demand")
