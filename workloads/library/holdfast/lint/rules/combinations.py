"""HF52x: fields that contradict each other; the API server or the kubelet refuses most of them."""

from collections import Counter
from collections.abc import Iterator

from holdfast.lint.accessors import list_names
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector, selects
from holdfast.lint.objects import (
    KNOWN_KINDS,
    PROBES,
    Job,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
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
        codes = as_list(dig(entry, "onExitCodes", "values"))
        if dig(entry, "onExitCodes", "operator") == "In" and 0 in codes:
            yield Hit((*path, "onExitCodes", "values"), "In takes no exit code 0")
    if job.spec.get("podFailurePolicy") and job.spec.get("podReplacementPolicy") not in (
        None,
        "Failed",
    ):
        yield Hit((*job.path, "podReplacementPolicy"), "podFailurePolicy needs Failed")
    if job.pod and job.in_jobset and job.pod.spec.get("restartPolicy") == "Always":
        path = (*job.pod.spec_path, "restartPolicy")
        yield Hit(path, "the pods of a Job need restartPolicy Never or OnFailure")
    if job.pod and not job.in_jobset:
        policy = job.pod.spec.get("restartPolicy")
        if policy in (None, "Always") and not job.spec.get("podFailurePolicy"):
            path = (*job.pod.spec_path, "restartPolicy") if policy else job.pod.spec_path
            yield Hit(path, "the pods of a Job need restartPolicy Never or OnFailure")
    if as_int(job.spec.get("parallelism")) == 0:
        yield Hit((*job.path, "parallelism"), "starts no pod")


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
    claims = [*as_list(pod.owner.spec.get("volumeClaimTemplates"))]
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
            for name in ("periodSeconds", "timeoutSeconds", "failureThreshold"):
                number = quantity(probe.get(name))
                if number is not None and number < 1:
                    yield Hit((*path, name), f"{name} is below 1")
