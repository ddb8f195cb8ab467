"""HF824 to HF829: launches of training whose members do not meet, or whose work is lost.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import (
    Container,
    Job,
    Object,
    Pod,
    as_int,
    as_map,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.scripts import find_script

DOC_RUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
DOC_TRAINER = "https://huggingface.co/docs/transformers/main_classes/trainer"
DOC_STATEFUL = "https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/"
DOC_RAY = "https://docs.ray.io/en/latest/cluster/cli.html"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/concepts/"
_LAUNCHERS = ("torchrun", "torch.distributed.run", "accelerate", "deepspeed")
# References whose values differ from pod to pod, or from start to start.
_OF_THE_POD = re.compile(
    r"\$[({]?(?:POD_NAME|HOSTNAME|POD_UID|POD_IP|RANDOM|JOB_COMPLETION_INDEX)\b"
    r"|\$\((?:date|uuidgen|hostname)|`(?:date|uuidgen|hostname)"
)
_RANDOM_ID = re.compile(r"--rdzv[-_]id[= ](\S{1,200})")
_LIMITED_RUN = re.compile(r"--(?:num[-_]train[-_])?(?:epochs|max[-_]steps|max[-_]epochs)[= ]\d")
_RAY_HEAD = re.compile(r"ray start --head[^\n;&|]{0,300}--block[^\n;&|]{0,200}(?:\n|;|&&)\s*(\S+)")
_RAY_WORKER = re.compile(r"ray start (?![^\n;&|]{0,300}--(?:head|block))[^\n;&|]{0,300}$")
_POD_ADDRESS = re.compile(
    r"(?<![\w.-])([a-z0-9][a-z0-9-]{1,62})\.([a-z0-9-]{1,63})\.([a-z0-9-]+)\.svc"
)
_NO_RESUME = re.compile(
    r"--(?:resume[-_]from[-_]checkpoint|resume)[= ](?:false|none|no)\b", re.IGNORECASE
)


def _launch(*options: str) -> str:
    lines = "\n".join(f"- {option}" for option in options)
    return f"""\
command:
- torchrun
- --nnodes=2
- --nproc-per-node=1
{lines}
- train.py
"""


@rule(
    "HF824",
    "members-never-meet",
    Severity.ERROR,
    on=Pod,
    what="Each member of a launch has an identity of the run of its own, or runs alone.",
    why="Each waits for the others in a meeting of its own, until the timeout.",
    source=DOC_RUN,
    fix="one --rdzv-id for all, as the job's name; no --standalone with several nodes",
    base="container",
    bad=_launch(
        "--rdzv-backend=c10d", "--rdzv-endpoint=meet.example:29500", "--rdzv-id=$(HOSTNAME)"
    ),
    good=_launch("--rdzv-backend=c10d", "--rdzv-endpoint=meet.example:29500", "--rdzv-id=train"),
)
def check_meetings(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        text = " ".join(container.words)[:20_000]
        nodes = (container.option("--nnodes") or "1").partition(":")[2]
        nodes = nodes or container.option("--nnodes") or "1"
        is_group = nodes.isdecimal() and int(nodes[:9]) > 1
        for value in _RANDOM_ID.findall(text) if is_group else ():
            if _OF_THE_POD.search(value):
                yield Hit(container.command_path, f"--rdzv-id is {value}: of each pod another one")
        if "--standalone" in container.arguments:
            if is_group:
                yield Hit(container.command_path, f"--standalone, and --nnodes is {nodes}")
            elif _count_members(pod) > 1:
                message = f"--standalone, and the gang has {_count_members(pod)} pods"
                yield Hit(container.command_path, message)
        yield from _check_processes(container, pod)


def _count_members(pod: Pod) -> int:
    """Counts the pods of a gang; the pods of a Job alone may be runs of their own."""
    return pod.job.parallelism if pod.job and pod.job.in_jobset else 1


def _check_processes(container: Container, pod: Pod) -> Iterator[Hit]:
    """Yields a launch by accelerate whose processes are not the GPUs of all machines."""
    if "accelerate" not in container.programs or not container.gpus:
        return
    processes = container.number("--num_processes") or container.number("--num-processes")
    machines = container.number("--num_machines") or container.number("--num-machines")
    total = container.gpus * (machines or 1)
    if processes and processes > total:
        message = f"{processes} processes, and {total} GPUs on {machines or 1} machines"
        yield Hit(container.command_path, message)
    if machines and pod.job and pod.job.parallelism not in (1, machines):
        message = f"{machines} machines, and the Job has {pod.job.parallelism} pods"
        yield Hit(container.command_path, message)


def _train(option: str) -> str:
    return f"""\
command:
- python
- -m
- trainer
- --output_dir=gs://bucket/run
- {option}
"""


@rule(
    "HF825",
    "work-starts-over",
    Severity.WARNING,
    on=Job,
    what="A program that is restarted overwrites its last checkpoints, or never writes one.",
    why="Each eviction and each retry starts at step 0.",
    source=DOC_TRAINER,
    fix="save by steps, resume from the last checkpoint, and do not overwrite the folder",
    base="container",
    bad=_train("--save_strategy=no"),
    good=_train("--save_strategy=steps"),
)
def check_restarts(job: Job, context: Context) -> Iterator[Hit]:
    is_retried = job.spec.get("backoffLimit") != 0 or job.in_jobset
    for container in job.containers if is_retried else ():
        text = " ".join(container.words)[:20_000]
        words = container.arguments
        is_training = any(name in text for name in ("train", "sft", "finetune", "fine-tune"))
        if not is_training:
            continue
        if (
            container.option("--save_strategy") == "no"
            or container.option("--save-strategy") == "no"
        ):
            yield Hit(container.command_path, "saves no checkpoint until it ends")
        for option in ("--overwrite_output_dir", "--overwrite-output-dir"):
            is_off = container.option(option).lower() == "false"
            if {option, f"{option}=true", f"{option}=True"} & set(words) and not is_off:
                yield Hit(container.command_path, f"{option} removes the last checkpoints")
        if _NO_RESUME.search(text):
            yield Hit(container.command_path, "does not resume from its checkpoints")


def _write_deployment(command: str) -> str:
    return f"""\
command:
{command}
"""


@rule(
    "HF826",
    "work-that-ends-in-a-deployment",
    Severity.WARNING,
    on=Pod,
    what="A Deployment or StatefulSet runs a training of a stated length.",
    why="When it has finished, it is started again, and so on.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/job/",
    fix="run it as a Job or a JobSet",
    base="serving-container",
    bad=_write_deployment("- torchrun\n- train.py\n- --epochs=3\n- --checkpoints=gs://b/c"),
    good=_write_deployment("- python\n- -m\n- server"),
)
def check_kinds(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.owner.kind not in ("Deployment", "StatefulSet", "ReplicaSet"):
        return
    for container in pod.main_containers:
        text = " ".join(container.words)[:20_000]
        is_training = any(name in container.programs for name in _LAUNCHERS) or "train" in text
        if is_training and _LIMITED_RUN.search(text):
            message = f"a training that ends, in a {pod.owner.kind}"
            yield Hit(container.command_path, message)


def _write_ordered(policy: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: train
  namespace: research
spec:
  clusterIP: None
  selector:
    app: train
  ports:
  - port: 29500
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: train
  namespace: research
spec:
  serviceName: train
  replicas: 2
  podManagementPolicy: {policy}
  selector:
    matchLabels:
      app: train
  template:
    metadata:
      labels:
        app: train
    spec:
      containers:
      - name: main
        image: registry.example/trainer:1.4
        command:
        - torchrun
        - --nnodes=2
        - --rdzv-backend=c10d
        - --rdzv-endpoint=train-0.train:29500
        - serve.py
        ports:
        - containerPort: 29500
        readinessProbe:
          tcpSocket:
            port: 29500
"""


@rule(
    "HF827",
    "gang-one-after-the-other",
    Severity.ERROR,
    on=Object,
    kinds=("StatefulSet", "LeaderWorkerSet"),
    what="Members of a gang start one after the other, and each is ready only with all others.",
    why="The first one waits for the second, which starts when the first is ready.",
    source=DOC_STATEFUL,
    fix="podManagementPolicy: Parallel",
    bad=_write_ordered("OrderedReady"),
    good=_write_ordered("Parallel"),
)
def check_order(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "LeaderWorkerSet":
        yield from _check_leader(obj)
        return
    replicas = as_int(obj.spec.get("replicas")) or 1
    if replicas < 2 or obj.spec.get("podManagementPolicy") == "Parallel":
        return
    for pod in obj.pods:
        for container in pod.main_containers:
            nodes = container.option("--nnodes") or container.option("--num_machines")
            is_gang = nodes.isdecimal() and int(nodes[:9]) > 1
            if is_gang and "readinessProbe" in container.body:
                path = ("spec", "podManagementPolicy")
                yield Hit(path, f"pod 0 of {nodes} is ready only after the others have started")


def _check_leader(obj: Object) -> Iterator[Hit]:
    """Yields a group whose workers start after a leader that is ready only with them."""
    if obj.spec.get("startupPolicy") != "LeaderReady":
        return
    for pod in obj.pods:
        for container in pod.main_containers if "leaderTemplate" in pod.path else ():
            stages = container.number("--pipeline-parallel-size") or 1
            if stages > 1 and "readinessProbe" in container.body:
                yield Hit(("spec", "startupPolicy"), "the leader is ready only with its workers")


def _write_group(head: str, join: str) -> str:
    return f"""\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: big
  namespace: serving
spec:
  leaderWorkerTemplate:
    size: 2
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      spec:
        containers:
        - name: main
          image: registry.example/big:1
          command:
          - bash
          - -c
          - {head} && exec python serve.py
    workerTemplate:
      spec:
        containers:
        - name: main
          image: registry.example/big:1
          command:
          - bash
          - -c
          - {join}
"""


@rule(
    "HF828",
    "ray-ends-or-blocks",
    Severity.ERROR,
    on=Pod,
    what="`ray start --block` comes before the server, or a worker's `ray start` has no --block.",
    why="The server never starts; or the container ends at once, and the worker with it.",
    source=DOC_RAY,
    fix="--block on workers, and not on the head that starts a server",
    bad=_write_group(
        "ray start --head --port=6379 --block",
        "exec ray start --address=$(LWS_LEADER_ADDRESS):6379 --block",
    ),
    good=_write_group(
        "ray start --head --port=6379",
        "exec ray start --address=$(LWS_LEADER_ADDRESS):6379 --block",
    ),
)
def check_ray(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        script = find_script(container)
        text = script.text.replace("\\\n", " ").strip() if script else ""
        match = _RAY_HEAD.search(text)
        if match and not match[1].startswith("#"):
            yield Hit(container.command_path, f"{match[1]} waits until Ray ends")
        last_line = text.rpartition("\n")[2].rpartition("&&")[2].strip()
        if _RAY_WORKER.search(last_line):
            yield Hit(container.command_path, "the container ends after `ray start`: no --block")


def _write_gang(namespace: str) -> str:
    return f"""\
spec:
  network:
    enableDNSHostnames: true
    subdomain: train
  replicatedJobs:
  - name: workers
    template:
      spec:
        backoffLimit: 0
        parallelism: 2
        completions: 2
        activeDeadlineSeconds: 86400
        podFailurePolicy:
          rules:
          - action: FailJob
            onPodConditions:
            - type: DisruptionTarget
              status: "True"
        template:
          spec:
            priorityClassName: spot-workload-low
            restartPolicy: Never
            terminationGracePeriodSeconds: 15
            containers:
            - name: main
              image: registry.example/trainer:1.4
              env:
              - name: LEADER
                value: train-workers-0-0.train.{namespace}.svc
"""


@rule(
    "HF829",
    "address-of-another-namespace",
    Severity.ERROR,
    on=Object,
    what="The address of a pod of this gang names another namespace than that of the gang.",
    why="The name does not resolve: the members wait for each other until the timeout.",
    source=DOC_JOBSET,
    fix="write the namespace of the object, or leave it out",
    base="jobset",
    bad=_write_gang("default"),
    good=_write_gang("training"),
)
def check_addresses(obj: Object, context: Context) -> Iterator[Hit]:
    subdomain = as_text(dig(as_map(obj.spec.get("network")), "subdomain")) or obj.name
    if obj.kind not in ("JobSet", "StatefulSet") or not obj.namespace:
        return
    if obj.kind == "StatefulSet":
        subdomain = as_text(obj.spec.get("serviceName"))
    for pod in obj.pods:
        for container in pod.containers:
            for path, text in container.list_texts():
                for host, domain, namespace in _POD_ADDRESS.findall(text[:4_000]):
                    is_own = host.startswith(f"{obj.name}-") and domain == subdomain
                    if is_own and namespace != obj.namespace:
                        yield Hit(path, f"{host} is in {obj.namespace}, not in {namespace}")
