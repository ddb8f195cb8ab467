"""HF52x: fields that contradict each other; the API server or the kubelet refuses most of them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER, get_selector, selects
from holdfast.lint.objects import (
    KNOWN_KINDS,
    PROBES,
    Job,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    dig,
    list_names,
)
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_HPA = "https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/"
DOC_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/"
DOC_POD = "https://kubernetes.io/docs/concepts/workloads/pods/"
_OWNERS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_PER_INDEX = ("backoffLimitPerIndex", "maxFailedIndexes")
_MOST_PER_INDEX = 100_000


@rule(
    "HF520",
    "job-fields-contradict",
    Severity.ERROR,
    on=Job,
    what="Fields of a Job exclude each other.",
    why="The API server refuses the Job; a JobSet waits without it.",
    source=DOC_JOB,
    fix="state completionMode: Indexed with completions, and a restartPolicy of Jobs",
    base="job",
    bad="""\
spec:
  completionMode: NonIndexed
""",
    good="spec: {completionMode: Indexed}",
)
def job_fields_contradict(job: Job, context: Context) -> Iterator[Hit]:
    # JobSet sets Indexed where a child states nothing.
    mode = job.spec.get("completionMode") or ("Indexed" if job.in_jobset else "NonIndexed")
    is_indexed = mode == "Indexed"
    for field in (*_PER_INDEX, "successPolicy"):
        if field in job.spec and not is_indexed:
            yield Hit((*job.path, field), f"{field} needs completionMode Indexed")
    if is_indexed and not job.in_jobset and job.spec.get("completions") is None:
        yield Hit((*job.path, "completionMode"), "Indexed needs completions")
    if "maxFailedIndexes" in job.spec and "backoffLimitPerIndex" not in job.spec:
        yield Hit((*job.path, "maxFailedIndexes"), "needs backoffLimitPerIndex")
    for index, entry in enumerate(job.rules):
        path = (*job.path, "podFailurePolicy", "rules", index)
        if entry.get("action") == "FailIndex" and "backoffLimitPerIndex" not in job.spec:
            yield Hit((*path, "action"), "FailIndex needs backoffLimitPerIndex")
        if ("onExitCodes" in entry) == ("onPodConditions" in entry):
            yield Hit(path, "needs either onExitCodes or onPodConditions")
        codes = as_list(dig(entry, "onExitCodes", "values"))
        if dig(entry, "onExitCodes", "operator") == "In" and 0 in codes:
            yield Hit((*path, "onExitCodes", "values"), "In takes no exit code 0")
    if job.spec.get("podFailurePolicy") and job.spec.get("podReplacementPolicy") not in (
        None,
        "Failed",
    ):
        yield Hit((*job.path, "podReplacementPolicy"), "podFailurePolicy needs Failed")
    if job.pod and not job.in_jobset:
        policy = job.pod.spec.get("restartPolicy")
        if policy in (None, "Always") and not job.spec.get("podFailurePolicy"):
            path = (*job.pod.spec_path, "restartPolicy") if policy else job.pod.spec_path
            yield Hit(path, "the pods of a Job need restartPolicy Never or OnFailure")
    if as_int(job.spec.get("parallelism")) == 0:
        yield Hit((*job.path, "parallelism"), "starts no pod")


@rule(
    "HF521",
    "scaler-bounds-wrong",
    Severity.ERROR,
    on=Object,
    kinds=(SCALER,),
    what="The bounds or the metrics of an autoscaler cannot be met.",
    why="The API server refuses it, or it never scales: the replicas stay as they are.",
    source=DOC_HPA,
    fix="minReplicas at most maxReplicas; request what it measures",
    base="serving",
    bad="""\
metadata:
  name: server
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
  minReplicas: 8
  maxReplicas: 4
""",
    good="""\
metadata:
  name: server
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
""",
)
def scaler_bounds_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    min_replicas = as_int(obj.spec.get("minReplicas"))
    max_replicas = as_int(obj.spec.get("maxReplicas"))
    if max_replicas is None:
        yield Hit(("spec",), "has no maxReplicas")
    elif max_replicas < 1:
        yield Hit(("spec", "maxReplicas"), f"maxReplicas is {max_replicas}")
    elif (min_replicas or 1) > max_replicas:
        yield Hit(
            ("spec", "minReplicas"),
            f"minReplicas {min_replicas or 1} is above maxReplicas {max_replicas}",
        )
    if min_replicas == 0 and not any(
        metric.get("type") in ("External", "Object") for metric in as_maps(obj.spec.get("metrics"))
    ):
        yield Hit(("spec", "minReplicas"), "0 needs a metric of type External or Object")
    yield from _check_targets(obj)
    target = as_text(dig(obj.spec, "scaleTargetRef", "name"))
    kind = as_text(dig(obj.spec, "scaleTargetRef", "kind"))
    if kind in ("Job", "JobSet", "CronJob", "DaemonSet", "Pod"):
        yield Hit(("spec", "scaleTargetRef", "kind"), f"a {kind} has no replicas to scale")
    workload = context.index.find(kind, target, obj.namespace)
    for pod in workload.pods if workload else []:
        yield from _check_metrics(obj, pod)
    rivals = context.index.list_namespace(SCALER, obj.namespace)
    for rival in rivals:
        is_rival = rival.spec.get("scaleTargetRef") == obj.spec.get("scaleTargetRef")
        if is_rival and rival.name != obj.name and rival.file == obj.file:
            yield Hit(("spec", "scaleTargetRef"), f"{rival.name} scales {target} too")
            return


_TARGETS = {
    "Utilization": "averageUtilization",
    "AverageValue": "averageValue",
    "Value": "value",
}


def _check_targets(scaler: Object) -> Iterator[Hit]:
    """Yields targets whose type is not that of their value."""
    for index, metric in enumerate(as_maps(scaler.spec.get("metrics"))):
        kind = as_text(metric.get("type"))
        field = f"{kind[:1].lower()}{kind[1:]}"
        if kind and field not in metric:
            yield Hit(("spec", "metrics", index, "type"), f"type {kind} has no {field}")
        target = as_map(dig(metric, field, "target"))
        value = _TARGETS.get(as_text(target.get("type")))
        if value and target.get(value) is None:
            path = ("spec", "metrics", index, field, "target")
            yield Hit(path, f"type {target['type']} needs {value}")
        if kind == "Pods" and target.get("type") not in (None, "AverageValue"):
            path = ("spec", "metrics", index, field, "target", "type")
            yield Hit(path, "a metric of pods has an AverageValue")


def _check_metrics(scaler: Object, pod: Pod) -> Iterator[Hit]:
    """Yields the metrics of a scaler that a pod cannot give."""
    metrics: list[tuple[Path, Any, Any, Any]] = []
    if "targetCPUUtilizationPercentage" in scaler.spec:
        metrics.append((("spec", "targetCPUUtilizationPercentage"), "cpu", "Utilization", None))
    for index, metric in enumerate(as_list(scaler.spec.get("metrics"))):
        for field in ("resource", "containerResource"):
            source = dig(metric, field)
            if isinstance(source, dict):
                kind = dig(source, "target", "type")
                path = ("spec", "metrics", index, field)
                metrics.append((path, source.get("name"), kind, source.get("container")))
    for path, name, kind, container_name in metrics:
        containers = pod.main_containers
        if container_name:
            containers = [item for item in containers if item.name == container_name]
            if not containers:
                yield Hit(path, f"no container {container_name}")
        for container in containers:
            if kind == "Utilization" and container.request(str(name)) is None:
                yield Hit(path, f"measures {name} by its request, and {container.name} has none")
                break


@rule(
    "HF522",
    "selector-misses-own-pods",
    Severity.ERROR,
    on=Object,
    kinds=_OWNERS,
    what="The selector of a workload does not match the labels of its own pods.",
    why="The API server refuses it.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#selector",
    fix="repeat the labels of the pod template",
    base="serving",
    bad="""\
spec:
  selector:
    matchLabels:
      app: servers
""",
    good="""\
spec:
  selector:
    matchLabels:
      app: server
""",
)
def selector_misses_own_pods(obj: Object, context: Context) -> Iterator[Hit]:
    selector = get_selector(obj)
    for pod in obj.pods:
        if any(selector.values()) and not selects(selector, pod):
            yield Hit(("spec", "selector"), "does not match the labels of its own pods")


@rule(
    "HF523",
    "user-contradicts",
    Severity.ERROR,
    on=Pod,
    what="A container has to run as another user than root, and as user 0; or as both privileged.",
    why="The kubelet does not start it: CreateContainerConfigError.",
    source="https://kubernetes.io/docs/tasks/configure-pod-container/security-context/",
    fix="set runAsUser to a number above 0",
    base="job-pod",
    bad="""\
securityContext:
  runAsNonRoot: true
  runAsUser: 0
""",
    good="""\
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
""",
)
def user_contradicts(pod: Pod, context: Context) -> Iterator[Hit]:
    inherited = as_map(pod.spec.get("securityContext"))
    for container in pod.containers:
        context_body = as_map(container.body.get("securityContext"))
        settings = inherited | context_body
        path = (*(container.path if context_body else pod.spec_path), "securityContext")
        if settings.get("runAsNonRoot") is True and settings.get("runAsUser") == 0:
            yield Hit(path, "runAsNonRoot with runAsUser 0")
        escalates = context_body.get("allowPrivilegeEscalation") is not False
        if context_body.get("privileged") is True and not escalates:
            yield Hit(path, "privileged without allowPrivilegeEscalation")


@rule(
    "HF524",
    "roll-out-cannot-move",
    Severity.ERROR,
    on=Object,
    kinds=("Deployment",),
    what="The strategy of a Deployment lets it neither add nor remove a pod.",
    why="The API server refuses it.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#strategy",
    fix="strategy: {type: Recreate}, or maxSurge or maxUnavailable above 0",
    base="serving",
    bad="""\
spec:
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 0
      maxUnavailable: 0
""",
    good="""\
spec:
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
""",
)
def roll_out_cannot_move(obj: Object, context: Context) -> Iterator[Hit]:
    strategy = as_map(obj.spec.get("strategy"))
    limits = as_map(strategy.get("rollingUpdate"))
    surge = limits.get("maxSurge")
    if surge in (0, "0", "0%") and limits.get("maxUnavailable") in (0, "0", "0%"):
        yield Hit(("spec", "strategy", "rollingUpdate"), "may neither add nor remove a pod")
    if strategy.get("type") == "Recreate" and limits:
        yield Hit(("spec", "strategy", "rollingUpdate"), "Recreate takes no rollingUpdate")


@rule(
    "HF525",
    "named-twice",
    Severity.ERROR,
    on=Pod,
    what="Two containers, ports, variables, volumes or mounts have the same name or path.",
    why="The API server refuses the pod; of two variables the last one counts.",
    source=DOC_POD,
    fix="remove one, or rename it",
    base="container",
    bad="""\
env:
  - name: RATE
    value: '1'
  - name: RATE
    value: '2'
""",
    good="env: [{name: RATE, value: '1'}]",
)
def names_repeat(pod: Pod, context: Context) -> Iterator[Hit]:
    names = list_names(pod.spec.get("containers")) + list_names(pod.spec.get("initContainers"))
    yield from _report_twice((*pod.spec_path, "containers"), names, "container")
    volumes = list_names(pod.spec.get("volumes"))
    yield from _report_twice((*pod.spec_path, "volumes"), volumes, "volume")
    for container in pod.containers:
        for field, key, word in (
            ("env", "name", "variable"),
            ("ports", "name", "port"),
            ("volumeMounts", "mountPath", "mount"),
        ):
            items = as_list(container.body.get(field))
            values = [as_text(dig(item, key)) for item in items]
            yield from _report_twice((*container.path, field), values, word)


def _report_twice(path: Path, names: list[str], word: str) -> Iterator[Hit]:
    for name, count in Counter(names).items():
        if name and count > 1:
            yield Hit(path, f"{word} {name} is there {count} times")


def _mounts(name: str) -> str:
    """Writes a folder, and a container that mounts one of this name."""
    mounts = f"volumeMounts: [{{name: {name}, mountPath: /data}}]"
    container = (
        f"{{name: main, image: train, resources: {{limits: {{nvidia.com/gpu: 1}}}}, {mounts}}}"
    )
    return f"volumes: [{{name: data, emptyDir: {{}}}}]\ncontainers: [{container}]"


@rule(
    "HF526",
    "mount-of-no-volume",
    Severity.ERROR,
    on=Pod,
    what="A container mounts a volume that the pod does not have.",
    why="The API server refuses the pod.",
    source=DOC_VOLUMES,
    fix="give the mount the volume's name",
    base="job-pod",
    bad=_mounts("dat"),
    good=_mounts("data"),
)
def mount_lacks_volume(pod: Pod, context: Context) -> Iterator[Hit]:
    claims = as_list(pod.owner.spec.get("volumeClaimTemplates"))
    for policy in as_list(pod.owner.spec.get("volumeClaimPolicies")):
        claims += as_list(dig(policy, "templates"))
    names = list_names(pod.spec.get("volumes"))
    for claim in claims:
        names.append(as_text(dig(claim, "metadata", "name")))
    for path, name in _list_mounts(pod) if pod.owner.kind in KNOWN_KINDS else ():
        if name and name not in names:
            yield Hit(path, f"no volume {name}; there are {', '.join(names) or 'none'}")


def _list_mounts(pod: Pod) -> Iterator[tuple[Path, str]]:
    for container in pod.containers:
        for field in ("volumeMounts", "volumeDevices"):
            for index, mount in enumerate(as_list(container.body.get(field))):
                yield (*container.path, field, index, "name"), as_text(dig(mount, "name"))


@rule(
    "HF529",
    "volume-not-mounted",
    Severity.WARNING,
    on=Pod,
    what="No container mounts a volume of the pod.",
    why="Its path is then an empty folder of the container, or none.",
    source=DOC_VOLUMES,
    fix="mount it, or remove it",
    base="job-pod",
    bad="""\
volumes:
  - name: data
    emptyDir: {}
""",
    good=_mounts("data"),
)
def volume_not_mounted(pod: Pod, context: Context) -> Iterator[Hit]:
    mounted = {name for _, name in _list_mounts(pod)}
    for path, volume in pod.volumes:
        name = as_text(volume.get("name"))
        # GKE's sidecar of FUSE takes volumes of its own name.
        if name and name not in mounted and not name.startswith("gke-gcsfuse"):
            yield Hit(path, f"no container mounts {name}")


@rule(
    "HF527",
    "budget-contradicts",
    Severity.ERROR,
    on=Object,
    kinds=("PodDisruptionBudget",),
    what="A budget has both bounds, or a pod has two budgets.",
    why="The API server refuses the first; with the second every eviction fails.",
    source="https://kubernetes.io/docs/tasks/run-application/configure-pdb/",
    fix="one budget for a pod, with minAvailable or maxUnavailable",
    base="job",
    bad="""\
spec:
  template:
    metadata:
      labels:
        app: train
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: train
  namespace: training
  annotations:
    holdfast.dev/reason: gang
spec:
  minAvailable: 1
  maxUnavailable: 1
  selector:
    matchLabels:
      app: train
""",
    good="""\
spec:
  template:
    metadata:
      labels:
        app: train
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: train
  namespace: training
  annotations:
    holdfast.dev/reason: gang
spec:
  minAvailable: 1
  selector:
    matchLabels:
      app: train
""",
)
def budget_contradicts(obj: Object, context: Context) -> Iterator[Hit]:
    if "minAvailable" in obj.spec and "maxUnavailable" in obj.spec:
        yield Hit(("spec", "maxUnavailable"), "has minAvailable too")
    selector = obj.spec.get("selector")
    if not any(as_map(selector).values()):
        return
    for pod in context.index.select_pods(obj.namespace, selector):
        for rival in context.index.find_selecting("PodDisruptionBudget", pod):
            if rival.name != obj.name and rival.file == obj.file:
                yield Hit(("spec", "selector"), f"{rival.name} is over the same pods")
                return


@rule(
    "HF528",
    "probe-refused",
    Severity.ERROR,
    on=Pod,
    what="A probe has a threshold or a period that the API server refuses.",
    why="Liveness and startup probes succeed after one success; periods are at least a second.",
    source="https://kubernetes.io/docs/concepts/workloads/pods/probes/",
    fix="successThreshold: 1",
    base="serving-container",
    bad="""\
livenessProbe:
  httpGet:
    path: /
    port: 8080
  successThreshold: 2
""",
    good="""\
livenessProbe:
  httpGet:
    path: /
    port: 8080
  successThreshold: 1
""",
)
def probe_refused(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for field in PROBES:
            probe = as_map(container.body.get(field))
            path = (*container.path, field)
            if field != "readinessProbe" and probe.get("successThreshold") not in (None, 1):
                yield Hit((*path, "successThreshold"), f"a {field} takes 1")
            handlers = [name for name in ("httpGet", "tcpSocket", "exec", "grpc") if name in probe]
            if probe and len(handlers) != 1:
                yield Hit(path, "needs one of httpGet, tcpSocket, exec and grpc")
            for name in ("periodSeconds", "timeoutSeconds", "failureThreshold"):
                number = quantity(probe.get(name))
                if number is not None and number < 1:
                    yield Hit((*path, name), f"{name} is below 1")
