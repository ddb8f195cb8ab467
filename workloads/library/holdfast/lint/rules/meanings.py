"""HF853 to HF858: values that are allowed, and that mean something else than was wanted.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import (
    KNOWN_KINDS,
    Container,
    Job,
    Object,
    Pod,
    as_int,
    as_list,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near, suggest
from holdfast.vocabulary import pools as contract

DOC_POD = "https://kubernetes.io/docs/concepts/workloads/pods/#pod-networking"
DOC_FAILURES = "https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy"
DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_GPU = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"
DOC_OPTIONS = "https://docs.python.org/3/library/argparse.html"
DOC_RAY = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html"
_LOCAL = re.compile(r"//(?:[^@/\s]{1,100}@)?(?:127\.0\.0\.1|localhost):(\d{1,5})(?!\d)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_OPTION = re.compile(r"--[a-z][\w-]{1,60}")
_SHORTEST_ROUND_S = 120
_FINAL_CODES = (1, 2, 3, 64, 65, 70, 78, 126, 127)
_LONGEST = 4_000


def _write_client(port: int) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: api
  namespace: research
spec:
  selector:
    matchLabels:
      app: api
  template:
    metadata:
      labels:
        app: api
    spec:
      containers:
      - name: api
        image: registry.example/api:1.4
        env:
        - name: CACHE_URL
          value: redis://localhost:{port}
      - name: local
        image: registry.example/cache:1.4
        ports:
        - containerPort: 6380
---
apiVersion: v1
kind: Service
metadata:
  name: cache
  namespace: research
spec:
  clusterIP: None
  ports:
  - port: 6379
"""


@rule(
    "HF853",
    "localhost-has-no-such-port",
    Severity.ERROR,
    on=Pod,
    what="A container asks a port of localhost that its pod does not have, and a Service has.",
    why="Connection refused: localhost is the pod itself.",
    source=DOC_POD,
    fix="name the Service",
    bad=_write_client(6379),
    good=_write_client(6380),
)
def check_local_ports(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.spec.get("hostNetwork") is True or pod.owner.kind not in KNOWN_KINDS:
        return
    for container in pod.main_containers:
        for path, text in container.list_texts():
            for port in sorted(set(_LOCAL.findall(text[:_LONGEST]))):
                service = _find_service(pod, int(port), context)
                if service and not _is_mentioned(pod, port, path):
                    message = f"nothing in the pod listens on {port}; Service {service} does"
                    yield Hit(path, message)


def _find_service(pod: Pod, port: int, context: Context) -> str:
    """Returns the only Service of the pod's file with a port; empty for none or several."""
    names: list[str] = []
    for service in context.index.list_namespace("Service", pod.owner.namespace):
        ports = [as_int(dig(item, "port")) for item in as_list(service.spec.get("ports"))]
        if service.file == pod.owner.file and port in ports:
            names.append(service.name)
    return names[0] if len(names) == 1 else ""


def _is_mentioned(pod: Pod, port: str, path: Path) -> bool:
    """Returns whether a container has a port, or names it elsewhere than at a path."""
    for container in pod.containers:
        if int(port) in container.ports:
            return True
        for other_path, text in container.list_texts():
            if other_path != path and port in text[:_LONGEST]:
                return True
    return False


@rule(
    "HF854",
    "each-other-code-fails-at-once",
    Severity.WARNING,
    on=Job,
    what="A failure policy fails a Job on every exit code but those that it names.",
    why="A crash that a retry would get over ends the Job; backoffLimit is of no use.",
    source=DOC_FAILURES,
    fix="operator: In, with the codes of errors that stay",
    base="job",
    bad="""\
spec:
  podFailurePolicy:
    rules:
    - action: Ignore
      onPodConditions:
      - type: DisruptionTarget
        status: "True"
    - action: FailJob
      onExitCodes:
        operator: NotIn
        values: [2]
""",
)
def check_codes(job: Job, context: Context) -> Iterator[Hit]:
    retries = max(
        as_int(job.spec.get(field)) or 0 for field in ("backoffLimit", "backoffLimitPerIndex")
    )
    for index, entry in enumerate(job.rules):
        codes = as_list(dig(entry, "onExitCodes", "values"))
        is_failure = entry.get("action") in ("FailJob", "FailIndex")
        # A program that ends with 75 or after a signal asks for its retry.
        is_final = all(code in _FINAL_CODES for code in codes)
        is_negated = dig(entry, "onExitCodes", "operator") == "NotIn"
        if is_failure and is_negated and is_final and retries:
            path = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "operator")
            shown = ", ".join(map(str, codes[:5]))
            yield Hit(path, f"{entry.get('action')} on each exit code but {shown}: no retry")


@rule(
    "HF855",
    "rounds-longer-than-the-deadline",
    Severity.WARNING,
    on=Job,
    what="A Job runs its pods in rounds, and its deadline leaves less than two minutes for each.",
    why="A new node takes minutes; the Job ends with DeadlineExceeded, and most pods never ran.",
    source=DOC_JOB + "#job-termination-and-cleanup",
    fix="set activeDeadlineSeconds in seconds, for all rounds and the start of nodes",
    base="job",
    bad="""\
spec:
  completions: 64
  parallelism: 8
  activeDeadlineSeconds: 720
""",
    good="""\
spec:
  completions: 64
  parallelism: 8
  activeDeadlineSeconds: 43200
""",
)
def check_rounds(job: Job, context: Context) -> Iterator[Hit]:
    completions = as_int(job.spec.get("completions")) or 1
    parallelism = as_int(job.spec.get("parallelism"))
    parallelism = 1 if parallelism is None else parallelism
    if job.in_jobset or parallelism < 1 or job.pod is None:
        return
    rounds = -(-completions // parallelism)
    if rounds < 2 or not context.place(job.pod).interruptible:
        return
    for path, seconds in job.deadlines:
        if path[: len(job.path)] == job.path and 0 < seconds < rounds * _SHORTEST_ROUND_S:
            yield Hit(path, f"{seconds} s for {rounds} rounds of {parallelism} pods")
            return


@rule(
    "HF856",
    "option-twice",
    Severity.WARNING,
    on=Pod,
    what="A command gives an option two different numbers.",
    why="Most programs take the last one, and a reader the first.",
    source=DOC_OPTIONS,
    fix="keep one of them",
    base="container",
    bad="command: [python, train.py, --epochs, '3', --lr, '0.1', --epochs, '30']",
    good="command: [python, train.py, --epochs, '30', --lr, '0.1']",
)
def check_repeats(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        yield from _compare_numbers(container)


def _compare_numbers(container: Container) -> Iterator[Hit]:
    """Yields options with two numbers, if the command is no script."""
    numbers: dict[str, str] = {}
    name = ""
    for path, word in container.list_words():
        if " " in word:
            return
        # What follows may be the command of another program.
        if word == "--" or word.endswith(".py"):
            numbers.clear()
        flag, equals, value = word.partition("=")
        if equals and _OPTION.fullmatch(flag[:80]) and _NUMBER.fullmatch(value[:40]):
            name = flag
        else:
            value = word
        if name and _NUMBER.fullmatch(value[:40]):
            first = numbers.setdefault(name, value)
            if first != value:
                yield Hit(path, f"{name} is {first}, and then {value}")
        name = word if not equals and _OPTION.fullmatch(word[:80]) else ""


_AGENT = """\
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: agent
  namespace: research
spec:
  selector:
    matchLabels:
      app: agent
  template:
    metadata:
      labels:
        app: agent
    spec:
      nodeSelector:
        cloud.google.com/gke-accelerator: nvidia-l4
      TOLERATIONS
      containers:
      - name: agent
        image: registry.example/agent:1.4
"""


@rule(
    "HF857",
    "agent-misses-the-gpu-nodes",
    Severity.ERROR,
    on=Pod,
    what="A DaemonSet selects nodes with GPUs, and does not tolerate their taint.",
    why="GKE adds the toleration only to pods that ask for GPUs: this one runs on no such node.",
    source=DOC_GPU,
    fix="tolerate nvidia.com/gpu with operator Exists",
    bad=_AGENT.replace("TOLERATIONS", "hostPID: false"),
    good=_AGENT.replace("TOLERATIONS", "tolerations: [{operator: Exists}]"),
)
def check_agents(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.owner.kind != "DaemonSet" or pod.gpus:
        return
    for _, toleration in pod.tolerations:
        key = toleration.get("key") or ""
        if key in ("", contract.GPU_TAINT.key) and toleration.get("effect") != "NoExecute":
            return
    for demand in context.place(pod).find_demands(contract.LABEL_ACCELERATOR):
        yield Hit(demand.path, f"nodes of {demand.values[0]} have the taint nvidia.com/gpu")
        return


def _write_start(name: str) -> str:
    return f"""\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: tune
  namespace: research
spec:
  headGroupSpec:
    rayStartParams:
      {name}: 0.0.0.0
    template:
      spec:
        containers:
        - name: head
          image: registry.example/ray:1.4
"""


@rule(
    "HF858",
    "ray-start-option-wrong",
    Severity.ERROR,
    on=Object,
    kinds=("RayCluster", "RayJob", "RayService"),
    what="An option of `ray start` is misspelt, or keeps the dashboard on the loopback address.",
    why="The container ends with a usage message, or nothing outside the pod reaches the head.",
    source=DOC_RAY,
    fix="use the options of `ray start --help`; dashboard-host: 0.0.0.0",
    bad=_write_start("dashboard-hosts"),
    good=_write_start("dashboard-host"),
)
def check_ray_options(obj: Object, context: Context) -> Iterator[Hit]:
    known_names = load_table("flags")["ray"]
    for root in (("spec",), ("spec", "rayClusterSpec"), ("spec", "rayClusterConfig")):
        groups: list[Path] = [(*root, "headGroupSpec")]
        for index in range(len(as_list(dig(obj.body, *root, "workerGroupSpecs")))):
            groups.append((*root, "workerGroupSpecs", index))
        for path in groups:
            options = dig(obj.body, *path, "rayStartParams")
            for name, value in options.items() if isinstance(options, dict) else ():
                place = (*path, "rayStartParams", name)
                if name not in known_names and find_near(name, known_names, 0.8):
                    message = f"ray start has no --{name}{suggest(name, known_names)}"
                    yield Hit(place, message, on_key=True)
                if name == "dashboard-host" and as_text(value) in ("127.0.0.1", "localhost"):
                    yield Hit(place, f"dashboard-host is {value}: nothing else reaches it")
            group = dig(obj.body, *path)
            replicas = as_int(dig(group, "replicas"))
            min_replicas = as_int(dig(group, "minReplicas"))
            if replicas is not None and min_replicas is not None and replicas < min_replicas:
                yield Hit(
                    (*path, "replicas"), f"replicas {replicas} is below minReplicas {min_replicas}"
                )
