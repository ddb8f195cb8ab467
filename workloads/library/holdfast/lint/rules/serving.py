"""HF14x: servers of requests on Spot. Source: infra/decisions/0048 and 0049."""

from collections.abc import Iterator
from itertools import pairwise

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_int, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.shutdown import pre_stop_sleep
from holdfast.lint.world import selector_of
from holdfast.support.values import quantity
from holdfast.vocabulary import serving
from holdfast.vocabulary.serving import DRAIN_PATH, HOOK_PORT

ANNOTATION_NEG = "cloud.google.com/neg"
OVERFLOW_OF = "holdfast.dev/overflow-of"
_DRAIN = "infra/decisions/0048"
_PROXY = "infra/decisions/0049"
_VLLM = {("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")}
_READY = (
    "readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}, periodSeconds: 1,"
    " failureThreshold: 1}"
)


def _service(name: str, annotations: str = "") -> str:
    about = f"{{name: {name}, namespace: serving{annotations}}}"
    return (
        f"apiVersion: v1\nkind: Service\nmetadata: {about}\nspec: {{selector: {{app: {name}}},"
        " ports: [{port: 8080}]}\n"
    )


def _spot(container: str, *, annotations: str = "") -> str:
    """A Service and its Deployment on Spot, with one container."""
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
      tolerations: [{{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}}]
      containers: [{{name: main, image: server, {container}}}]
"""


_NEG = f", annotations: {{{ANNOTATION_NEG}: '{{\"ingress\": true}}'}}"


def services(pod: Pod, context: Context) -> list[Object]:
    """Services that send requests to these pods.

    Not those that name the members of a gang before they are ready: readiness ends no traffic
    there.
    """
    chosen = []
    for s in context.world.selecting("Service", pod):
        if s.spec.get("publishNotReadyAddresses") is not True:
            chosen.append(s)
    return [each for each in chosen if each.spec.get("selector")]


@rule(
    "HF140",
    "readiness-too-slow-for-spot",
    Severity.ERROR,
    on=Pod,
    what="A Spot pod behind a Service has no readiness probe that fails within a second.",
    why=(
        "A Spot notice takes no pod out of a Service; a proxy that asks for its readiness does."
        " Until then requests go to a pod that is about to die."
    ),
    source=_DRAIN,
    fix="periodSeconds: 1, failureThreshold: 1, and a server that answers 503 from SIGTERM on",
    bad=_spot("readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 10}"),
    good=_READY,
    base="serving-container",
)
def readiness_too_slow(pod: Pod, context: Context) -> Iterator[Hit]:
    if context.place(pod).on_spot is None or not services(pod, context):
        return
    stated = []
    for c in pod.containers:
        if c.body.get("readinessProbe"):
            stated.append((c, as_map(c.body.get("readinessProbe"))))
    if not stated:
        yield Hit(
            (*pod.at, "containers"), "no container has a readiness probe: nothing ends its traffic"
        )
    for container, probe in stated:
        slow_s = (as_int(probe.get("periodSeconds")) or 10) * (
            as_int(probe.get("failureThreshold")) or 3
        )
        if slow_s > serving.PROBE_PERIOD_S * serving.PROBE_FAILURES:
            yield Hit((*container.path, "readinessProbe"), f"fails after {slow_s} s only")


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
    for container in pod.containers if pool else []:
        asked = quantity(container.option("--longest-request")) or 0.0
        most = serving.drain_budget(pool.window.pod_s).longest_request_s if pool else 0.0
        if pool and "serve" in container.words and asked > most:
            message = f"{asked:g} s, and the window leaves {most:g} s"
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
    balanced = (
        ANNOTATION_NEG in as_map(obj.metadata.get("annotations"))
        or obj.spec.get("type") == "LoadBalancer"
    )
    pods = context.world.selected(obj.namespace, {"matchLabels": obj.spec.get("selector")})
    if balanced and obj.spec.get("selector") and any(context.place(pod).on_spot for pod in pods):
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
    grace_s = as_int(pod.spec.get("terminationGracePeriodSeconds"))
    for container in pod.containers:
        words = [each.rpartition("/")[2] for each in container.words]
        if not set(pairwise(words)) & _VLLM:
            continue
        window_s = pool.window.pod_s if pool else 30 if grace_s is None else grace_s
        hold_s, timeout_s = serving.sidecar_budget(window_s)
        if not pool and "lifecycle" not in container.body:
            timeout_s = window_s
        basis = context.platform.window_basis(pool) if pool else ""
        stated = quantity(container.option("--shutdown-timeout")) or 0.0
        if stated > timeout_s or (pool and stated <= 0):
            message = (
                f"--shutdown-timeout is {stated:g} s,"
                f" {'the window' if pool else 'its grace period'} leaves {timeout_s:g} s"
            )
            yield Hit(container.command_at, message, basis)
        slept, _ = pre_stop_sleep(container)
        if pool and slept is not None and slept > hold_s:
            yield Hit(
                (*container.path, "lifecycle", "preStop"),
                f"sleeps {slept:g} s of {hold_s:g} s",
                basis,
            )


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
    backends = []
    for s in services(pod, context):
        for p in context.world.selected(s.namespace, selector_of(s)):
            backends.append(p)
    for container in (
        pod.containers if any(context.place(each).on_spot for each in backends) else []
    ):
        live, ready = (
            dig(container.body, probe, "httpGet") for probe in ("livenessProbe", "readinessProbe")
        )
        if live and live == ready:
            yield Hit(
                (*container.path, "livenessProbe", "httpGet"),
                "is the request of the readiness probe",
            )


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
    for sidecar in (c for c in pod.containers if c.runs("holdfast", "serve", "sidecar")):
        wanted = (DRAIN_PATH, sidecar.number("--hook-port") or HOOK_PORT)
        hooks = [as_map(dig(c.body, "lifecycle", "preStop", "httpGet")) for c in pod.containers]
        if wanted not in [(each.get("path"), each.get("port")) for each in hooks]:
            yield Hit(sidecar.path, f"no preStop hook asks for {wanted[0]} on port {wanted[1]}")


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
    wanted = as_text(as_map(obj.metadata.get("annotations")).get(OVERFLOW_OF))
    if not wanted or not obj.pods:
        return
    at = ("metadata", "annotations", OVERFLOW_OF)
    base = context.world.named("Deployment", wanted, obj.namespace)
    if base is None:
        yield Hit(at, f"there is no Deployment {wanted} among the files examined")
    elif any(
        context.place(pod).on_spot or not as_map(pod.spec.get("nodeSelector")) for pod in base.pods
    ):
        yield Hit(at, f"Deployment {wanted} is not tied to machines on demand")
