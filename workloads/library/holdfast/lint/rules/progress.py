"""HF62x: manifests that lose work, or that keep paying for capacity without use."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER, get_selector
from holdfast.lint.objects import Container, Job, Object, Pod, as_int, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import duration_s
from holdfast.vocabulary.pools import LABEL_NODEPOOL

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_SIDECAR = "https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/"
DOC_PUBSUB = "https://cloud.google.com/pubsub/docs/subscription-properties"
DOC_EVICT = (
    "https://cloud.google.com/kubernetes-engine/docs/concepts/cluster-autoscaler"
    "#scheduling-and-disruption"
)
_RUN_OPTION = re.compile(
    r"--(run|checkpoints?|ckpts?|resume|save|restore|state|output)[-_]?(dir|directory|path|root)?"
)
_POD_REFERENCE = re.compile(r"\$[({](\w+)[)}]|\$(\w+)")
_ENDLESS = re.compile(
    r"(^|\s)--(watch|follow|daemon|forever|serve)(=true)?(\s|$)|tail\s+(-n\s*\S+\s+)?-[fF]"
    r"|while\s+(true|:)|sleep\s+inf|(^|/)(tensorboard|nginx|redis-server|mlflow|prometheus"
    r"|fluent-bit|cloud-sql-proxy|cloud_sql_proxy|otelcol\S*|dcgm-exporter)(\s|$)"
)
# What ends such a program, or the loop of a script.
_END = re.compile(r"quitquitquit|exit-zero-on-sigterm|(^|[\s;&|])(exit|break|return)\b|--pid[= ]")
_ENDLESS_IMAGE = re.compile(
    r"(^|/)(nginx|redis|fluent-bit|fluentd|cloud-sql-proxy|opentelemetry-collector\S*|otel\S*"
    r"|dcgm-exporter|envoy|prometheus|tensorboard)(:|@|$)"
)
_ACK_OPTION = re.compile(r"--(ack|acks|ack[-_](mode|policy|when|on)|acknowledge)")
_EARLY = (
    *("on-receive", "on_receive", "receive", "early", "immediate", "before", "at-most-once"),
    *("none", "first"),
)
_KEEPS = re.compile(r"check.?point|ckpt|resume|restore|skip[-_](done|committed)|save[-_]", re.I)
_ANSWER_SETTING = re.compile(
    r"(generation|request|response|answer|stream|read)[-_]?(timeout|max|seconds|deadline)",
    re.IGNORECASE,
)
_LONG_S = 6 * 3_600
_DAY_S = 86_400
_SHORTEST_ANSWER_S = 60
_DEFAULT_TIMEOUT_S = 30


def _write_run(folder: str) -> str:
    return f"""\
command: [python, -m, train, --run-dir, '{folder}']
env:
- name: POD_NAME
  valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
"""


@rule(
    "HF620",
    "run-named-after-the-pod",
    Severity.ERROR,
    on=Pod,
    what="The folder of a run has the name of the pod, which each retry of a Job changes.",
    why="The next pod looks into an empty folder, and the run starts at step 0.",
    source=DOC_JOB,
    fix="name the folder after the run, and after JOB_COMPLETION_INDEX for each index",
    base="container",
    bad=_write_run("gs://runs/$(POD_NAME)"),
    good=_write_run("gs://runs/ppo-12"),
)
def check_run_folders(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.job is None:
        return
    # Pods of an Indexed Job have hostnames that stay; JobSet makes such Jobs.
    is_indexed = pod.job.in_jobset or pod.job.spec.get("completionMode") == "Indexed"
    for container in pod.main_containers:
        names = set() if is_indexed else {"HOSTNAME"}
        for item in as_maps(container.body.get("env")):
            if dig(item, "valueFrom", "fieldRef", "fieldPath") in ("metadata.name", "metadata.uid"):
                names.add(as_text(item.get("name")))
        option = ""
        for path, word in container.list_words():
            flag, equals, value = word.partition("=")
            folder = value if equals else word
            is_run = _RUN_OPTION.fullmatch(flag if equals else option)
            references: set[str] = set()
            for in_brackets, bare in _POD_REFERENCE.findall(folder[:2_000]):
                references.add(in_brackets or bare)
            is_own_file = _is_worker_output(flag if equals else option, pod.job)
            if is_run and references & names and not is_own_file:
                yield Hit(path, f"{folder[:80]} is another folder after each retry")
            option = word


def _is_worker_output(option: str, job: Job) -> bool:
    """Returns whether an option is where a worker of a queue writes its own results."""
    is_queue = "completions" not in job.spec and job.parallelism > 1
    return is_queue and option.startswith("--output")


def _write_job(places: str) -> str:
    return f"""\
containers:
- name: main
  image: registry.example/trainer:1.4
  resources: {{limits: {{nvidia.com/gpu: 1}}}}
{places}- name: upload
  image: registry.example/upload:1.0
  args: [--logs=/logs, --watch]
  restartPolicy: RESTART
"""


@rule(
    "HF621",
    "job-never-completes",
    Severity.ERROR,
    on=Pod,
    what="A Job has a container that never ends in addition to the one that works.",
    why="The pod runs until its deadline, on a GPU that is paid for, and then counts as failed.",
    source=DOC_SIDECAR,
    fix="move it to initContainers with restartPolicy: Always",
    base="job-pod",
    bad=_write_job("").replace("  restartPolicy: RESTART\n", ""),
    good=_write_job("initContainers:\n").replace("RESTART", "Always"),
)
def check_sidecars(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.job is None or len(pod.main_containers) < 2:
        return
    for container in pod.main_containers:
        if is_endless(container) and not container.gpus:
            yield Hit(container.path, f"{container.name} never ends, and so neither does the Job")


def is_endless(container: Container) -> bool:
    """Returns whether a container runs a server, or a loop, that never ends by itself."""
    image = as_text(container.body.get("image"))[:500]
    # A server without a command of its own: its arguments are options.
    is_server = _ENDLESS_IMAGE.search(image) and not container.body.get("command")
    text = " ".join(container.words)[:4_000]
    if is_server and not re.search(r"(^|\s)(sh|bash|-c|--version|--config\.test)(\s|$)", text):
        return not _END.search(text)
    return bool(_ENDLESS.search(text) and not _END.search(text))


@rule(
    "HF622",
    "acknowledged-before-the-work",
    Severity.ERROR,
    on=Pod,
    what="A worker acknowledges a message when it receives it.",
    why="A worker that is preempted or crashes has lost the message: nothing sends it again.",
    source=DOC_PUBSUB,
    fix="acknowledge after the result is stored",
    base="container",
    bad="""\
args:
- --ack=on-receive
""",
    good="""\
args:
- --ack=after-result
""",
)
def check_acknowledgements(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        option = ""
        for path, word in container.list_words():
            flag, equals, value = word.partition("=")
            name = flag if equals else option
            mode = (value if equals else word).lower()
            if _ACK_OPTION.fullmatch(name) and mode in _EARLY:
                yield Hit(path, f"{name} is {mode}: a lost worker loses its message")
            option = word
        for path, name, value in container.variables:
            if name.endswith("ACKS_LATE") and value.lower() in ("0", "false", "no"):
                yield Hit(path, f"{name} is {value}: a lost worker loses its message")


@rule(
    "HF623",
    "store-keeps-nothing",
    Severity.ERROR,
    on=Pod,
    what="Redis has a disk, and writes nothing to it: neither a log nor snapshots.",
    why="Each restart of the pod empties it, and with it a queue of work.",
    source="https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/",
    fix="--appendonly yes",
    base="serving-pod",
    bad="""\
volumes:
- name: data
  persistentVolumeClaim:
    claimName: data
containers:
- name: main
  image: redis:7.4.2
  command: [redis-server, --appendonly, 'no', --save, '']
  volumeMounts:
  - name: data
    mountPath: /data
""",
    good="""\
nodeSelector: null
containers:
- name: main
  image: redis:7.4.2
  command: [redis-server, --appendonly, 'yes']
""",
)
def check_stores(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        has_no_log = container.option("--appendonly") == "no"
        has_no_snapshots = "--save" in container.words and not container.option("--save")
        is_redis = "redis-server" in container.programs or "valkey-server" in container.programs
        if is_redis and has_no_log and has_no_snapshots and _has_claim(container):
            yield Hit(container.command_path, "writes nothing to its disk")


def _has_claim(container: Container) -> bool:
    """Returns whether a container mounts a claim, or one of its StatefulSet's templates."""
    volumes = {volume.get("name"): volume for _, volume in container.pod.volumes}
    for _, mount in container.mounts:
        name = mount.get("name")
        if name not in volumes or "persistentVolumeClaim" in volumes[name]:
            return True
    return False


def _write_ray(field: str) -> str:
    return f"""\
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: tune, namespace: training}}
spec: {{{field}}}
"""


@rule(
    "HF624",
    "group-stays-as-it-is",
    Severity.WARNING,
    on=Object,
    kinds=("RayJob", "LeaderWorkerSet"),
    what="A Ray cluster stays after its job, or a group of pods is not made again after a loss.",
    why="Its GPUs are paid for while they idle, or wait for a pod that is gone.",
    source="https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/rayjob-quick-start.html",
    fix="shutdownAfterJobFinishes: true; restartPolicy: RecreateGroupOnPodRestart",
    bad=_write_ray("shutdownAfterJobFinishes: false"),
    good=_write_ray("shutdownAfterJobFinishes: true"),
)
def check_groups(obj: Object, context: Context) -> Iterator[Hit]:
    template = dig(obj.spec, "leaderWorkerTemplate")
    if obj.kind == "LeaderWorkerSet":
        path = ("spec", "leaderWorkerTemplate", "restartPolicy")
        is_group = (as_int(dig(template, "size")) or 1) > 1
        if is_group and dig(template, "restartPolicy") == "None":
            message = "the others wait for the pod that was lost"
            fix = "restartPolicy: RecreateGroupOnPodRestart"
            yield Hit(path, message, fix=fix)
    elif obj.spec.get("shutdownAfterJobFinishes") is False and not obj.spec.get("clusterSelector"):
        path = ("spec", "shutdownAfterJobFinishes")
        fix = "shutdownAfterJobFinishes: true"
        yield Hit(path, "the cluster stays after its job", fix=fix)


@rule(
    "HF625",
    "long-job-may-be-moved",
    Severity.WARNING,
    on=Pod,
    what="A Job of many hours that keeps no checkpoints may be evicted to save a node.",
    why="The autoscaler empties nodes that are little used: hours of work begin again.",
    source=DOC_EVICT,
    fix='cluster-autoscaler.kubernetes.io/safe-to-evict: "false"',
    base="job-template",
    bad="""\
metadata:
  annotations:
    cluster-autoscaler.kubernetes.io/safe-to-evict: 'true'
spec:
  activeDeadlineSeconds: 86400
""",
    good="""\
spec:
  activeDeadlineSeconds: 86400
""",
)
def check_evictions(pod: Pod, context: Context) -> Iterator[Hit]:
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    if pod.job is None or pod.annotations.get(key) != "true":
        return
    longest_s = max((seconds for _, seconds in pod.job.deadlines), default=_DAY_S)
    keeps = False
    for container in pod.containers:
        for _, text in container.list_texts():
            keeps = keeps or bool(_KEEPS.search(text[:4_000]))
    if longest_s > _LONG_S and not keeps:
        yield Hit((*pod.path, "metadata", "annotations", key), "keeps no checkpoints")


@rule(
    "HF626",
    "surge-without-room",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment",),
    what="A Deployment with GPUs on one named pool adds a pod before it removes one.",
    why="A pool that is full has no node for it: the roll-out waits until it is given up.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#max-unavailable",
    fix="maxSurge: 0 and maxUnavailable: 1, if the pool has no spare node",
    base="serving",
    bad="""\
spec:
  replicas: 4
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-nodepool: demand-a100}
      containers: [{name: main, image: server, resources: {limits: {nvidia.com/gpu: 1}}}]
""",
    good="""\
spec:
  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
""",
)
def check_surge(obj: Object, context: Context) -> Iterator[Hit]:
    limits = dig(obj.spec, "strategy", "rollingUpdate")
    if dig(limits, "maxUnavailable") not in (0, "0", "0%") or not dig(limits, "maxSurge"):
        return
    for pod in obj.pods:
        placement = context.place(pod)
        fixed = placement.find_demands(LABEL_NODEPOOL, "cloud.google.com/reservation-name")
        pools = placement.platform_pools
        room = sum(pool.max_nodes * pool.gpus_per_node for pool in pools)
        is_roomy = bool(pools) and room > pod.replicas * pod.gpus
        if pod.gpus and fixed and not is_roomy:
            message = "needs a free node for the pod that is added"
            yield Hit(("spec", "strategy", "rollingUpdate", "maxSurge"), message)


@rule(
    "HF627",
    "scaled-by-the-wrong-load",
    Severity.WARNING,
    on=Object,
    kinds=(SCALER,),
    what="An autoscaler measures CPU or memory of pods that work on GPUs.",
    why="A full GPU leaves the CPU idle: nothing is added while requests wait.",
    source="https://cloud.google.com/kubernetes-engine/docs/best-practices/machine-learning/inference/autoscaling",
    fix="scale on the requests that wait, or on the use of the GPU",
    base="serving",
    bad="""\
spec:
  replicas: 2
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: server, namespace: serving}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: gpu}
  minReplicas: 2
  maxReplicas: 4
  metrics:
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gpu, namespace: serving}
spec:
  selector: {matchLabels: {app: gpu}}
  template:
    metadata: {labels: {app: gpu}}
    spec:
      containers:
      - name: main
        image: server
        resources: {limits: {cpu: 2, nvidia.com/gpu: 1}}
""",
    good="""\
spec:
  replicas: 2
""",
)
def check_measures(obj: Object, context: Context) -> Iterator[Hit]:
    metrics = as_maps(obj.spec.get("metrics"))
    is_by_cpu = all(metric.get("type") in ("Resource", "ContainerResource") for metric in metrics)
    kind = as_text(dig(obj.spec, "scaleTargetRef", "kind"))
    name = as_text(dig(obj.spec, "scaleTargetRef", "name"))
    workload = context.index.find(kind, name, obj.namespace)
    has_gpus = any(pod.gpus for pod in workload.pods) if workload else False
    if metrics and is_by_cpu and has_gpus:
        yield Hit(("spec", "metrics"), f"{name} works on GPUs, which these metrics do not see")


def _write_policy(seconds: int) -> str:
    return f"""\
ports: [{{containerPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: models, namespace: models}}
spec: {{selector: {{app: models}}, ports: [{{port: 80}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: models, namespace: models, labels: {{app: models}}}}
spec:
  nodeSelector: {{cloud.google.com/gke-accelerator: nvidia-l4, holdfast.dev/pool-class: null}}
  tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]
  containers:
  - {{name: main, image: 'registry.example/a:1', resources: {{limits: {{nvidia.com/gpu: 1}}}}}}
---
apiVersion: networking.gke.io/v1
kind: GCPBackendPolicy
metadata: {{name: models, namespace: models}}
spec:
  default: {{timeoutSec: {seconds}}}
  targetRef: {{group: "", kind: Service, name: models}}
"""


@rule(
    "HF628",
    "load-balancer-cuts-answers",
    Severity.WARNING,
    on=Object,
    kinds=("GCPBackendPolicy",),
    what="A load balancer gives up a request to a model on a GPU after half a minute.",
    why="A long answer is cut with 504, and the GPU has worked on it for nothing.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/configure-gateway-resources",
    fix="set timeoutSec above the longest answer: 600",
    base="serving-container",
    bad=_write_policy(30),
    good="ports: [{containerPort: 8080}]",
)
def check_timeouts(obj: Object, context: Context) -> Iterator[Hit]:
    seconds = as_int(dig(obj.spec, "default", "timeoutSec")) or _DEFAULT_TIMEOUT_S
    name = as_text(dig(obj.spec, "targetRef", "name"))
    service = context.index.find("Service", name, obj.namespace)
    pods = context.index.select_pods(obj.namespace, get_selector(service)) if service else []
    if seconds < _SHORTEST_ANSWER_S and any(pod.gpus for pod in pods):
        yield Hit(("spec", "default"), f"{name} has {seconds} s for each answer")
        return
    for pod in pods:
        for container in pod.main_containers:
            for setting, longest in _list_answers(container):
                if longest > seconds:
                    message = f"{name} has {seconds} s for each answer, and {setting} {longest} s"
                    yield Hit(("spec", "default"), message)
                    return


def _list_answers(container: Container) -> Iterator[tuple[str, int]]:
    """Yields the settings that say how long an answer of a program may take, in seconds."""
    settings = [(name, value) for _, name, value in container.variables]
    settings += [(word.partition("=")[0], word.partition("=")[2]) for word in container.words]
    for name, value in settings:
        match = re.fullmatch(r"(\d{1,5})s?", value)
        if match and _ANSWER_SETTING.search(name):
            yield name, int(match[1])


def _write_subscription(seconds: int) -> str:
    return f"""\
apiVersion: pubsub.cnrm.cloud.google.com/v1beta1
kind: PubSubSubscription
metadata: {{name: pages, namespace: batch}}
spec:
  topicRef: {{name: pages}}
  messageRetentionDuration: {seconds}s
"""


@rule(
    "HF629",
    "messages-forgotten-too-soon",
    Severity.WARNING,
    on=Object,
    kinds=("PubSubSubscription",),
    what="A subscription keeps messages for less than a day.",
    why="Capacity on Spot or flex-start may take hours: the backlog is gone before a worker comes.",
    source=DOC_PUBSUB,
    fix="messageRetentionDuration: 604800s",
    bad=_write_subscription(3_600),
    good=_write_subscription(604_800),
)
def check_retention(obj: Object, context: Context) -> Iterator[Hit]:
    text = as_text(obj.spec.get("messageRetentionDuration"))
    seconds = duration_s(text)
    if seconds is not None and seconds < _DAY_S:
        yield Hit(("spec", "messageRetentionDuration"), f"forgets a message after {text}")
