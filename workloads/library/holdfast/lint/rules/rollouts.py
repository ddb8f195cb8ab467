"""HF454, HF740 to HF745: roll-outs, probes and scalers that take a service away."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER, get_selector, selects
from holdfast.lint.objects import (
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.probes import probe_time_s
from holdfast.lint.rules.servers import find_server

DOC_STRATEGY = "https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#strategy"
DOC_PROBES = "https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/"
DOC_VPA = "https://cloud.google.com/kubernetes-engine/docs/concepts/verticalpodautoscaler"
DOC_SERVICE = "https://kubernetes.io/docs/concepts/services-networking/service/"
_RESOURCES = ("cpu", "memory")
_CHANGING = ("Auto", "Recreate", "InPlaceOrRecreate", "Initial")


def _write_roll_out(limit: str) -> str:
    return f"""\
spec:
  strategy: {{rollingUpdate: {{maxSurge: 0, maxUnavailable: {limit}}}}}
  template: {{spec: {{containers: [{{name: main, image: a, ports: [{{containerPort: 8080}}],
    resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving}}
spec: {{selector: {{app: server}}, ports: [{{port: 80, targetPort: 8080}}]}}
"""


@rule(
    "HF740",
    "roll-out-stops-all",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment",),
    what="A roll-out may take all replicas behind a Service at once.",
    why="Until the new pods are ready, a model's minutes, nothing answers.",
    source=DOC_STRATEGY,
    fix="maxUnavailable below the replicas, as 1",
    base="serving",
    bad=_write_roll_out("100%").replace("image: a,", "image: 'registry.example/a:1',"),
    good=_write_roll_out("1").replace("image: a,", "image: 'registry.example/a:1',"),
)
def roll_out_stops_all(obj: Object, context: Context) -> Iterator[Hit]:
    replicas = as_int(obj.spec.get("replicas")) or 1
    if dig(obj.spec, "strategy", "type") == "Recreate":
        if replicas > 1 and any(_answers(pod) and not _holds_one(pod, context) for pod in obj.pods):
            message = f"Recreate ends all {replicas} replicas before it starts one"
            yield Hit(("spec", "strategy", "type"), message)
        return
    path = ("spec", "strategy", "rollingUpdate", "maxUnavailable")
    limit = dig(obj.body, *path)
    is_all = limit == "100%" or (as_int(limit) or 0) >= replicas
    is_served = any(context.index.find_selecting("Service", pod) for pod in obj.pods if pod.labels)
    if replicas > 1 and is_all and is_served:
        yield Hit(path, f"takes {limit} of {replicas} replicas at once")


def _answers(pod: Pod) -> bool:
    return any(container.body.get("readinessProbe") for container in pod.main_containers)


def _holds_one(pod: Pod, context: Context) -> bool:
    """Returns whether a pod holds what its successor cannot have at once: a disk, a host's port."""
    if pod.spec.get("hostNetwork") is True:
        return True
    for _, volume in pod.volumes:
        claim_name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
        claim = context.index.find("PersistentVolumeClaim", claim_name, pod.owner.namespace)
        modes = as_list(claim.spec.get("accessModes")) if claim else []
        if "ReadWriteOnce" in modes or "ReadWriteOncePod" in modes:
            return True
    for container in pod.containers:
        if any(dig(port, "hostPort") for port in as_list(container.body.get("ports"))):
            return True
    return False


_STARTING = """\
spec:
  progressDeadlineSeconds: {}
  template:
    spec:
      containers:
      - name: main
        image: server
        ports: [{{containerPort: 8000}}]
        startupProbe: {{httpGet: {{path: /, port: 8000}}, periodSeconds: 10, failureThreshold: 90}}
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


@rule(
    "HF454",
    "roll-out-given-up",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment",),
    what="A Deployment counts as failed before its pods had the time to start.",
    why="progressDeadlineSeconds is less than its probes grant: tools roll back what still loads.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#progress-deadline-seconds",
    fix="raise progressDeadlineSeconds above the time of the startup probe",
    base="serving",
    bad=_STARTING.format(60),
    good=_STARTING.format(1800),
)
def roll_out_given_up(obj: Object, context: Context) -> Iterator[Hit]:
    deadline_s = as_int(obj.spec.get("progressDeadlineSeconds"))
    if deadline_s is None:
        return
    for pod in obj.pods:
        for container in pod.main_containers:
            probe = as_map(container.body.get("startupProbe"))
            if probe and deadline_s < probe_time_s(probe):
                message = f"{deadline_s} s, and {container.name} may start for"
                yield Hit(
                    ("spec", "progressDeadlineSeconds"), f"{message} {probe_time_s(probe):g} s"
                )


def _alive(threshold: int) -> str:
    return f"""\
ports: [{{containerPort: 8080}}]
readinessProbe: {{httpGet: {{path: /ready, port: 8080}}}}
livenessProbe: {{httpGet: {{path: /live, port: 8080}}, failureThreshold: {threshold}}}
"""


@rule(
    "HF741",
    "restarted-for-one-answer",
    Severity.WARNING,
    on=Pod,
    what="A liveness probe restarts a container after one answer that is late or missing.",
    why="Under load one answer takes longer: the server is ended with all its requests.",
    source=DOC_PROBES,
    fix="failureThreshold of 3 or more",
    base="serving-container",
    bad=_alive(1),
    good=_alive(3),
)
def check_liveness_threshold(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        path = (*container.path, "livenessProbe", "failureThreshold")
        is_asked = isinstance(dig(container.body, "livenessProbe"), dict)
        if is_asked and dig(container.body, "livenessProbe", "failureThreshold") == 1:
            yield Hit(path, "one failed probe restarts the container")


def _write_partition(partition: int) -> str:
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db, namespace: research}}
spec:
  replicas: 3
  updateStrategy: {{type: RollingUpdate, rollingUpdate: {{partition: {partition}}}}}
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec: {{containers: [{{name: db, image: 'a:1'}}]}}
"""


@rule(
    "HF745",
    "update-never-rolled-out",
    Severity.WARNING,
    on=Object,
    kinds=("StatefulSet", "DaemonSet", "Deployment"),
    what="An update of a workload reaches none of its pods, or counts as failed before it may end.",
    why="A new image is applied, and the old one goes on running.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#update-strategies",
    fix="partition: 0; minReadySeconds below progressDeadlineSeconds",
    bad=_write_partition(3),
    good=_write_partition(0),
)
def update_never_rolled_out(obj: Object, context: Context) -> Iterator[Hit]:
    strategy = as_map(obj.spec.get("updateStrategy"))
    replicas = as_int(obj.spec.get("replicas")) or 1
    partition = as_int(dig(strategy, "rollingUpdate", "partition"))
    if partition is not None and partition >= replicas and obj.kind == "StatefulSet":
        path = ("spec", "updateStrategy", "rollingUpdate", "partition")
        yield Hit(path, f"{partition} of {replicas} pods keep the old template")
    if strategy.get("type") == "OnDelete" and obj.kind == "StatefulSet":
        yield Hit(("spec", "updateStrategy", "type"), "OnDelete: each pod is deleted by hand")
    ready_s = as_int(obj.spec.get("minReadySeconds")) or 0
    deadline_s = as_int(obj.spec.get("progressDeadlineSeconds")) or 600
    if obj.kind == "Deployment" and ready_s >= deadline_s:
        message = f"{ready_s} s, and progressDeadlineSeconds is {deadline_s}: it is refused"
        yield Hit(("spec", "minReadySeconds"), message)


def _ready(probe: str) -> str:
    return f"""\
image: vllm/vllm-openai:v0.9.2
command: null
args: [--model=Qwen/Qwen2.5-7B-Instruct, --port=8080]
ports: [{{containerPort: 8080}}]
{probe}
---
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving}}
spec: {{selector: {{app: server}}, ports: [{{port: 80, targetPort: 8080}}]}}
"""


@rule(
    "HF744",
    "requests-before-ready",
    Severity.WARNING,
    on=Pod,
    what="A server on a GPU behind a Service has no readiness probe.",
    why="It gets requests while it loads its model, in each roll-out and scale-up: they fail.",
    source=DOC_PROBES,
    fix="add a readinessProbe on the path that answers once the model is loaded",
    base="serving-container",
    bad=_ready(""),
    good=_ready("readinessProbe: {httpGet: {path: /health, port: 8080}}"),
)
def requests_before_ready(pod: Pod, context: Context) -> Iterator[Hit]:
    is_server = pod.owner.kind in ("Deployment", "StatefulSet") and pod.gpus > 0
    is_server = is_server and any(map(find_server, pod.main_containers))
    if not is_server or _answers(pod) or pod.spec.get("readinessGates"):
        return
    services = context.index.find_selecting("Service", pod) if pod.labels else []
    # A startup probe holds the requests back too, and a headless Service is for the pod's peers.
    starts = any(container.body.get("startupProbe") for container in pod.main_containers)
    is_served = any(service.spec.get("clusterIP") != "None" for service in services)
    if is_served and not starts:
        yield Hit((*pod.spec_path, "containers"), "has no readinessProbe, and loads a model first")


def _two_scalers(mode: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: server
  namespace: serving
spec:
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
      containers:
        - name: web
          image: a:1
          resources:
            requests:
              cpu: 2
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: server
  namespace: serving
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: server
  minReplicas: 2
  maxReplicas: 4
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: 60
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata:
  name: server
  namespace: serving
spec:
  targetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: server
  updatePolicy:
    updateMode: {mode}
"""


@rule(
    "HF742",
    "scaled-in-two-ways",
    Severity.ERROR,
    on=Object,
    kinds=("VerticalPodAutoscaler",),
    what="One autoscaler changes the requests that another one measures.",
    why="Each answers what the other did: replicas and requests swing, and pods are restarted.",
    source=DOC_VPA,
    fix="updateMode: Off, or scale by a metric other than CPU and memory",
    bad=_two_scalers("Auto"),
    good=_two_scalers("Off"),
)
def check_two_scalers(obj: Object, context: Context) -> Iterator[Hit]:
    mode = dig(obj.spec, "updatePolicy", "updateMode")
    if mode not in (None, *_CHANGING):
        return
    target = as_text(dig(obj.spec, "targetRef", "name"))
    controlled = _list_controlled(obj)
    for rival in context.index.list_namespace(SCALER, obj.namespace):
        is_same = _scales_target(rival, obj)
        for metric in as_maps(rival.spec.get("metrics")) if is_same else ():
            if dig(metric, "resource", "name") in controlled:
                message = f"{rival.name} scales {target} by {dig(metric, 'resource', 'name')}"
                yield Hit(("spec", "updatePolicy"), message)
                return
    for rival in context.index.list_namespace("ScaledObject", obj.namespace):
        is_same = _scales_target(rival, obj)
        kinds = [dig(trigger, "type") for trigger in as_list(rival.spec.get("triggers"))]
        if is_same and any(kind in controlled for kind in kinds):
            yield Hit(("spec", "updatePolicy"), f"{rival.name} scales {target} by its resources")
            return


def _list_controlled(scaler: Object) -> set[str]:
    """Lists the resources whose requests a vertical autoscaler changes, of any container."""
    policies = as_maps(dig(scaler.spec, "resourcePolicy", "containerPolicies"))
    if not policies:
        return set(_RESOURCES)
    controlled: set[str] = set()
    for policy in policies:
        if policy.get("mode") != "Off":
            resources = policy.get("controlledResources")
            controlled.update(_RESOURCES if resources is None else as_texts(resources))
    return controlled


def _scales_target(rival: Object, scaler: Object) -> bool:
    """Returns whether two autoscalers change the same workload."""
    target = as_map(scaler.spec.get("targetRef"))
    other = as_map(rival.spec.get("scaleTargetRef"))
    # KEDA takes a target without a kind for a Deployment.
    has_same_kind = other.get("kind", "Deployment") == target.get("kind", "Deployment")
    return has_same_kind and other.get("name") == target.get("name")


def _write_shared_label(label: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: chat
  namespace: research
spec:
  selector: {label}
  ports:
    - port: 80
      targetPort: 8000
---
apiVersion: v1
kind: Pod
metadata:
  name: chat
  namespace: research
  labels:
    team: nlp
    app: chat
spec:
  containers:
    - name: main
      image: a:1
      ports:
        - containerPort: 8000
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: research
  labels:
    team: nlp
    app: web
spec:
  containers:
    - name: main
      image: b:1
      ports:
        - containerPort: 3000
"""


@rule(
    "HF743",
    "service-over-strangers",
    Severity.ERROR,
    on=Object,
    kinds=("Service",),
    what="A Service selects pods that do not have its port, next to those that do.",
    why="Part of the requests is sent to a pod where nothing listens.",
    source=DOC_SERVICE,
    fix="select by a label that only the pods of the server have",
    bad=_write_shared_label("{team: nlp}"),
    good=_write_shared_label("{app: chat}"),
)
def service_over_strangers(obj: Object, context: Context) -> Iterator[Hit]:
    selector = get_selector(obj)
    if not any(selector.values()) or obj.spec.get("clusterIP") == "None":
        return
    pods = [pod for pod in context.index.list_pods_near(obj) if selects(selector, pod)]
    for entry in as_maps(obj.spec.get("ports")):
        target = entry.get("targetPort", entry.get("port"))
        with_port: list[Pod] = []
        without: list[Pod] = []
        for pod in pods:
            (with_port if _has_port(pod, target) else without).append(pod)
        strangers = [pod for pod in without if _is_stranger(pod, with_port)]
        numbers = set[int]().union(*(_list_numbers(pod, target) for pod in with_port))
        owners = {pod.owner.title for pod in with_port}
        if len(owners) > 1 and len(numbers) > 1:
            message = f"selects {', '.join(sorted(owners)[:3])}, whose port {target} differs"
            yield Hit(("spec", "selector"), message)
            return
        if with_port and strangers:
            other = strangers[0].owner
            message = f"selects {other.kind} {other.name} too, which has no port {target}"
            yield Hit(("spec", "selector"), message)
            return


def _has_port(pod: Pod, port: Any) -> bool:
    if not isinstance(port, (int, str)):
        return False
    for container in pod.containers:
        if port in container.ports or port in container.ports.values():
            return True
    return False


def _list_numbers(pod: Pod, port: Any) -> set[int]:
    """Lists the numbers of the ports of a pod that have a name."""
    numbers: set[int] = set()
    for container in pod.containers:
        for number, name in container.ports.items():
            if name == port:
                numbers.add(number)
    return numbers


def _is_stranger(pod: Pod, servers: list[Pod]) -> bool:
    """Returns whether a pod without the port is another program than those that have it."""
    images = {as_text(container.body.get("image")) for container in pod.main_containers}
    # Of the pods of a group only the leader answers.
    if pod.owner.kind == "LeaderWorkerSet":
        return any(other.owner is pod.owner for other in servers)
    for other in servers:
        if any(as_text(item.body.get("image")) in images for item in other.main_containers):
            return False
    return True
