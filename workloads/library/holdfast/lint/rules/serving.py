"""HF14x: servers of requests on Spot. Source: infra/decisions/0048 and 0049."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector
from holdfast.lint.objects import Container, Object, Pod, as_int, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.shutdown import DEFAULT_GRACE_S, pre_stop_sleep
from holdfast.support.values import quantity
from holdfast.vocabulary import serving
from holdfast.vocabulary.serving import DRAIN_PATH, HOOK_PORT

ANNOTATION_NEG = "cloud.google.com/neg"
OVERFLOW_OF = "holdfast.dev/overflow-of"
_DRAIN = "decision 0048 of Holdfast"
_PROXY = "decision 0049 of Holdfast"
_VLLM = {("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")}
_READY = (
    "readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}, periodSeconds: 1,"
    " failureThreshold: 1}"
)


def _service(name: str, annotations: str = "") -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: serving{annotations}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 8080}}]}}
"""


def _spot(container: str, *, annotations: str = "") -> str:
    """Writes a Service and its Deployment on Spot, with one container."""
    return f"""{_service("server", annotations)}---
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
      tolerations:
      - {{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}}
      containers: [{{name: main, image: server, {container}}}]
"""


_NEG = f", annotations: {{{ANNOTATION_NEG}: '{{\"ingress\": true}}'}}"


def find_services(pod: Pod, context: Context) -> list[Object]:
    """Returns the Services that send requests to these pods.

    A Service that names the members of a gang before they are ready is left out: readiness ends no
    traffic there.
    """
    find_services: list[Object] = []
    for service in context.index.find_selecting("Service", pod):
        publishes_all = service.spec.get("publishNotReadyAddresses") is True
        if service.spec.get("selector") and not publishes_all:
            find_services.append(service)
    return find_services


@rule(
    "HF140",
    "readiness-too-slow-for-spot",
    Severity.ERROR,
    on=Pod,
    what="A Spot pod behind a Service has no readiness probe that fails within a second.",
    why=(
        "A Spot notice does not remove a pod from its Service; a proxy that checks its"
        " readiness does. Until then requests go to a pod that is about to end."
    ),
    source=_DRAIN,
    fix="periodSeconds: 1, failureThreshold: 1, and a server that answers 503 from SIGTERM on",
    bad=_spot("readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 10}"),
    good=_READY,
    base="serving-container",
)
def readiness_too_slow(pod: Pod, context: Context) -> Iterator[Hit]:
    if context.place(pod).on_spot is None or not find_services(pod, context):
        return
    has_probe = False
    for container in pod.containers:
        if not container.body.get("readinessProbe"):
            continue
        has_probe = True
        probe = as_map(container.body.get("readinessProbe"))
        period_s = as_int(probe.get("periodSeconds")) or 10
        failures = as_int(probe.get("failureThreshold")) or 3
        if period_s * failures > serving.PROBE_PERIOD_S * serving.PROBE_FAILURES:
            path = (*container.path, "readinessProbe")
            yield Hit(path, f"fails after {period_s * failures} s only")
    if not has_probe:
        message = "no container has a readiness probe: nothing ends its traffic"
        yield Hit((*pod.spec_path, "containers"), message)


@rule(
    "HF142",
    "request-longer-than-drain",
    Severity.ERROR,
    on=Pod,
    what="A server lets a request take longer than a Spot window leaves for it.",
    why=(
        "It accepts requests until endpoints have moved, and has to answer the last of them before"
        " the kill."
    ),
    source=_DRAIN,
    fix="lower --longest-request, or use a pool with the longer window",
    bad=_spot(f"{_READY}, command: [python, -m, holdfast, serve, run, --longest-request, '30']"),
    good="command: [python, -m, holdfast, serve, run, --longest-request, '5']",
    base="serving-container",
)
def request_longer_than_drain(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    if pool is None:
        return
    limit_s = serving.drain_budget(pool.window.pod_s).longest_request_s
    for container in pod.containers:
        longest_s = quantity(container.option("--longest-request")) or 0.0
        if "serve" in container.words and longest_s > limit_s:
            message = f"{longest_s:g} s, and the window leaves {limit_s:g} s"
            yield Hit((*container.path, "command"), message, context.platform.window_basis(pool))


@rule(
    "HF143",
    "load-balancer-sends-to-spot",
    Severity.ERROR,
    on=Object,
    kinds=("Service",),
    what="A Service with network endpoint groups, or of type LoadBalancer, selects pods on Spot.",
    why=(
        "Google's endpoint groups drop an endpoint when it terminates, not when it is not ready,"
        " and its load balancers do not retry POST: each preemption loses requests."
    ),
    source=_PROXY,
    fix="let it select a proxy on demand, which asks the Spot pods for their readiness",
    bad=_spot(_READY, annotations=_NEG),
    good=_service("proxy", _NEG),
)
def load_balancer_sends_to_spot(obj: Object, context: Context) -> Iterator[Hit]:
    is_balanced = ANNOTATION_NEG in obj.annotations or obj.spec.get("type") == "LoadBalancer"
    selector = obj.spec.get("selector")
    if not is_balanced or not selector:
        return
    pods = context.index.select_pods(obj.namespace, {"matchLabels": selector})
    if any(context.place(pod).on_spot for pod in pods):
        yield Hit(("spec", "selector"), "a load balancer of the cloud sends requests to Spot pods")


@rule(
    "HF145",
    "vllm-drops-at-sigterm",
    Severity.ERROR,
    on=Pod,
    what=(
        "vLLM on Spot has no --shutdown-timeout, or one longer than the window or its grace period"
        " leaves."
    ),
    why=(
        "With its default of 0 it aborts every request at SIGTERM, and after SIGTERM it refuses new"
        " ones: it needs a drain before the signal and a timeout after it."
    ),
    source="https://docs.vllm.ai/en/latest/cli/serve/",
    fix=(
        "run `holdfast serve sidecar` in the pod as its readiness and preStop hook, and set"
        " --shutdown-timeout"
    ),
    bad=_spot(f"{_READY}, command: [vllm, serve, model]"),
    good="command: [vllm, serve, model, --shutdown-timeout, '7']",
    base="serving-container",
)
def vllm_drops_at_sigterm(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    if pool:
        window_s = pool.window.pod_s
        basis = context.platform.window_basis(pool)
        limit = "the window"
    else:
        window_s = DEFAULT_GRACE_S if pod.grace_s is None else pod.grace_s
        basis = ""
        limit = "its grace period"
    for container in pod.containers:
        if not _runs_vllm(container):
            continue
        hold_s, timeout_s = serving.sidecar_budget(window_s)
        if not pool and "lifecycle" not in container.body:
            timeout_s = window_s
        option_s = quantity(container.option("--shutdown-timeout")) or 0.0
        if option_s > timeout_s or (pool and option_s <= 0):
            message = f"--shutdown-timeout is {option_s:g} s, {limit} leaves {timeout_s:g} s"
            yield Hit(container.command_path, message, basis)
        sleep_s, _ = pre_stop_sleep(container)
        if pool and sleep_s is not None and sleep_s > hold_s:
            path = (*container.path, "lifecycle", "preStop")
            yield Hit(path, f"sleeps {sleep_s:g} s of {hold_s:g} s", basis)


def _runs_vllm(container: Container) -> bool:
    return not _VLLM.isdisjoint(pairwise(container.programs))


@rule(
    "HF147",
    "liveness-is-readiness",
    Severity.ERROR,
    on=Pod,
    what=(
        "A server whose Service has pods on Spot answers its liveness probe and its readiness probe"
        " by the same request."
    ),
    why=(
        "Readiness fails while a server drains or is busy. The kubelet then restarts it, with the"
        " requests that it has; or readiness never fails, and a server that is about to die gets"
        " requests."
    ),
    source="https://kubernetes.io/docs/concepts/workloads/pods/probes/",
    fix="two paths, as /v2/health/live and /v2/health/ready",
    bad=_spot(f"{_READY}, livenessProbe: {{httpGet: {{path: /v2/health/ready, port: 8080}}}}"),
    good=f"{_READY}\nlivenessProbe: {{httpGet: {{path: /v2/health/live, port: 8080}}}}",
    base="serving-container",
)
def liveness_is_readiness(pod: Pod, context: Context) -> Iterator[Hit]:
    backends: list[Pod] = []
    for service in find_services(pod, context):
        backends += context.index.select_pods(service.namespace, get_selector(service))
    if not any(context.place(backend).on_spot for backend in backends):
        return
    for container in pod.containers:
        liveness = dig(container.body, "livenessProbe", "httpGet")
        if liveness and liveness == dig(container.body, "readinessProbe", "httpGet"):
            path = (*container.path, "livenessProbe", "httpGet")
            yield Hit(path, "is the request of the readiness probe")


_SIDECAR = (
    "{name: drain, image: server, restartPolicy: Always, command: [python, -m, holdfast, serve,"
    " sidecar, --window, '15']}"
)
_HOOK = f"lifecycle: {{preStop: {{httpGet: {{path: {DRAIN_PATH}, port: {HOOK_PORT}}}}}}}"


@rule(
    "HF149",
    "drain-hook-missing",
    Severity.ERROR,
    on=Pod,
    what=(
        "A pod with `holdfast serve sidecar` has no container whose preStop hook asks the sidecar"
        " to drain."
    ),
    why=(
        "The sidecar then learns of the end by SIGTERM, together with the server: requests of the"
        " last seconds are lost."
    ),
    source=_PROXY,
    fix=f"on the server: {_HOOK}",
    base="serving-pod",
    bad=f"initContainers: [{_SIDECAR}]",
    good=(
        f"initContainers: [{_SIDECAR}]\ncontainers: [{{name: main, image: vllm, {_HOOK}, resources:"
        " {limits: {nvidia.com/gpu: 1}}}]"
    ),
)
def drain_hook_missing(pod: Pod, context: Context) -> Iterator[Hit]:
    hooks: list[tuple[Any, Any]] = []
    for container in pod.containers:
        request = dig(container.body, "lifecycle", "preStop", "httpGet")
        hooks.append((dig(request, "path"), dig(request, "port")))
    for container in pod.containers:
        port = container.number("--hook-port") or HOOK_PORT
        is_sidecar = container.runs("holdfast", "serve", "sidecar")
        if is_sidecar and (DRAIN_PATH, port) not in hooks:
            yield Hit(container.path, f"no preStop hook asks for {DRAIN_PATH} on port {port}")


@rule(
    "HF146",
    "overflow-without-base",
    Severity.ERROR,
    on=Object,
    what=f"{OVERFLOW_OF} names no Deployment, or one that may run on Spot itself.",
    why="When all of Spot is preempted at once, the base answers alone. It has to be on demand.",
    source=_PROXY,
    fix="name a Deployment of the same namespace that selects an on-demand pool",
    bad=_spot(_READY),
    good="metadata: {labels: {app: server}}",
    base="serving",
)
def overflow_without_base(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.annotations.get(OVERFLOW_OF))
    if not name or not obj.pods:
        return
    path = ("metadata", "annotations", OVERFLOW_OF)
    base = context.index.find("Deployment", name, obj.namespace)
    if base is None:
        yield Hit(path, f"there is no Deployment {name} among the files examined")
        return
    for pod in base.pods:
        if context.place(pod).on_spot or not as_map(pod.spec.get("nodeSelector")):
            yield Hit(path, f"Deployment {name} is not tied to machines on demand")
            return
