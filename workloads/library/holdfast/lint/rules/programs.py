"""HF465 to HF469: options of programs against the pods in which they run."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import PROBES, Container, Job, Pod, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import ENV_COMPLETION_INDEX

DOC_RUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
DOC_VLLM = "https://docs.vllm.ai/en/latest/cli/serve/"
_RANK_OPTIONS = ("--node-rank", "--node_rank", "--machine_rank", "--machine-rank")
_RANK_VARIABLES = ("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "RANK", "SHARD_INDEX", "SHARD")
_SHARD_COUNTS = (
    "--of",
    "--num-shards",
    "--num_shards",
    "--shards",
    "--total-shards",
    "--shard-count",
    "--n-shards",
    "--num-parts",
)
_LAST_PORT = 65_535
_SHARES = ("--gpu-memory-utilization", "--gpu_memory_utilization", "--mem-fraction-static")
_PORT_OPTIONS = ("--port", "--http-port", "--server-port", "--listen-port")
_COLLECTIVE = ("torchrun", "deepspeed", "accelerate", "mpirun", "vllm", "sglang")
_ADDRESS_OPTIONS = ("--master-port", "--master_port", "--main_process_port")


@rule(
    "HF465",
    "one-rank-for-all",
    Severity.ERROR,
    on=Job,
    what="Several pods of a Job get the same rank or the same shard, or a wrong number of shards.",
    why="Ranks wait for others that never come; shards are worked on twice, and others never.",
    source=DOC_RUN,
    fix="take the number from $(JOB_COMPLETION_INDEX), and the count from completions",
    base="job-pod",
    bad="""\
containers:
  - name: main
    image: train
    command:
      - torchrun
      - --nnodes=2
      - --node-rank=0
      - t.py
    resources:
      limits:
        nvidia.com/gpu: 1
""",
    good="""\
containers:
  - name: main
    image: train
    command:
      - torchrun
      - --nnodes=2
      - --node-rank=$(JOB_COMPLETION_INDEX)
      - t.py
    resources:
      limits:
        nvidia.com/gpu: 1
""",
)
def one_rank_for_all(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        if job.parallelism > 1:
            for option in _RANK_OPTIONS:
                if container.number(option) is not None:
                    message = f"{option} is {container.option(option)} in {job.parallelism} pods"
                    yield Hit(container.command_path, message)
            for path, name, value in container.variables:
                if name in _RANK_VARIABLES and value.isdecimal():
                    yield Hit(path, f"{name} is {value} in {job.parallelism} pods")
            gpus = max(1, container.gpus)
            world = container.number("", "WORLD_SIZE")
            if world is not None and world not in (job.parallelism, job.parallelism * gpus):
                message = f"WORLD_SIZE is {world}, with {job.parallelism} pods of {gpus} GPUs"
                yield Hit((*container.path, "env"), message)
        yield from _check_shards(container, job)


def _check_shards(container: Container, job: Job) -> Iterator[Hit]:
    completions = job.spec.get("completions")
    if ENV_COMPLETION_INDEX not in container.script or not isinstance(completions, int):
        return
    for option in _SHARD_COUNTS:
        count = container.number(option)
        if count is not None and count != completions:
            message = f"{option} {count}, and the Job has {completions} indices"
            yield Hit(container.command_path, message)


@rule(
    "HF466",
    "share-above-one",
    Severity.ERROR,
    on=Pod,
    what="A server of models is given more than all of a GPU's memory.",
    why="The option is a share: with 90 in the place of 0.9 the server ends at its start.",
    source=DOC_VLLM,
    fix="write a number from 0 to 1",
    base="serving-container",
    bad="""\
args:
  - --model
  - m
  - --gpu-memory-utilization
  - '90'
""",
    good="""\
args:
  - --model
  - m
  - --gpu-memory-utilization
  - '0.9'
""",
)
def share_above_one(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for option in _SHARES:
            share = quantity(container.option(option))
            if share is not None and not 0 < share <= 1:
                yield Hit(container.command_path, f"{option} is {share:g}")


def _listens(port: int) -> str:
    return f"ports: [{{containerPort: 8000}}]\nargs: [--model, m, --port, '{port}']"


@rule(
    "HF467",
    "listens-elsewhere",
    Severity.ERROR,
    on=Pod,
    what="A server listens on another port than those of its container, its probes or its Service.",
    why="Probes fail, and requests of the Service get no answer.",
    source="https://kubernetes.io/docs/concepts/services-networking/service/",
    fix="make --port and containerPort the same",
    base="serving-container",
    bad=_listens(8080),
    good=_listens(8000),
)
def listens_elsewhere(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if not container.ports or pod.job:
            continue
        for option in _PORT_OPTIONS:
            port = container.number(option)
            if port is None or port in container.ports:
                continue
            if _is_asked(container) or _is_behind_service(pod, context):
                ports = ", ".join(map(str, sorted(container.ports)))
                message = f"{option} is {port}, and the container has the ports {ports}"
                yield Hit(container.command_path, message)


def _is_asked(container: Container) -> bool:
    """Returns whether a probe asks a port that the container declares."""
    for field in PROBES:
        port = dig(container.body, field, "httpGet", "port")
        if port in container.ports or port in container.ports.values():
            return True
    return len(container.ports) == 1


def _is_behind_service(pod: Pod, context: Context) -> bool:
    return bool(context.index.find_selecting("Service", pod)) and bool(pod.labels)


@rule(
    "HF468",
    "shared-memory-missing",
    Severity.WARNING,
    on=Pod,
    what="Processes on several GPUs of a pod have no shared memory but the default of 64 MiB.",
    why="NCCL and loaders of data use /dev/shm between them: they end with a bus error.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    fix="mount an emptyDir with medium: Memory at /dev/shm",
    base="serving-pod",
    bad="""\
nodeSelector:
  holdfast.dev/pool-class: null
  cloud.google.com/gke-accelerator: nvidia-tesla-a100
containers:
  - name: main
    image: a
    command:
      - vllm
      - serve
      - m
      - --tensor-parallel-size
      - '4'
    resources:
      limits:
        nvidia.com/gpu: 4
""",
    good="""\
nodeSelector:
  holdfast.dev/pool-class: null
  cloud.google.com/gke-accelerator: nvidia-tesla-a100
volumes:
  - name: shm
    emptyDir:
      medium: Memory
containers:
  - name: main
    image: a
    command:
      - vllm
      - serve
      - m
      - --tensor-parallel-size
      - '4'
    volumeMounts:
      - name: shm
        mountPath: /dev/shm
    resources:
      limits:
        nvidia.com/gpu: 4
""",
)
def require_shared_memory(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.spec.get("hostIPC") is True:
        return
    for container in pod.main_containers:
        places = [as_text(mount.get("mountPath")).rstrip("/") for _, mount in container.mounts]
        is_collective = any(program in container.programs for program in _COLLECTIVE)
        if container.gpus > 1 and is_collective and "/dev/shm" not in places:
            path = (*container.path, "volumeMounts") if places else container.path
            yield Hit(path, f"{container.gpus} GPUs, and /dev/shm has 64 MiB")


@rule(
    "HF469",
    "ports-of-a-gang-differ",
    Severity.ERROR,
    on=Job,
    what="The port in a command of a gang is not the one in its variables.",
    why="Members meet at two ports, and wait for each other.",
    source=DOC_RUN,
    fix="state the port once: --master-port=$(MASTER_PORT)",
    base="job-pod",
    bad="""\
containers:
  - name: main
    image: train
    command:
      - torchrun
      - --master-port=29400
      - t.py
    env:
      - name: MASTER_PORT
        value: '29500'
    resources:
      limits:
        nvidia.com/gpu: 1
""",
    good="""\
containers:
  - name: main
    image: train
    command:
      - torchrun
      - --master-port=29500
      - t.py
    env:
      - name: MASTER_PORT
        value: '29500'
    resources:
      limits:
        nvidia.com/gpu: 1
""",
)
def compare_gang_ports(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        master_port = container.number("", "MASTER_PORT") or container.number("", "PET_MASTER_PORT")
        for option in _ADDRESS_OPTIONS:
            port = container.number(option)
            if port is None:
                continue
            if master_port and port != master_port:
                message = f"{option} is {port}, MASTER_PORT is {master_port}"
                yield Hit(container.command_path, message)
            elif container.ports and port not in container.ports:
                ports = ", ".join(map(str, sorted(container.ports)))
                message = f"{option} is {port}, and the container has the ports {ports}"
                yield Hit(container.command_path, message)


@rule(
    "HF464",
    "port-out-of-range",
    Severity.ERROR,
    on=Pod,
    what="A variable or an option names a port above 65535.",
    why="The program ends at its start, or its members never meet.",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    fix="write a port from 1024 to 65535",
    base="container",
    bad="env: [{name: MASTER_PORT, value: '295000'}]",
    good="env: [{name: MASTER_PORT, value: '29500'}]",
)
def require_valid_ports(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for path, name, value in container.variables:
            if re.search(r"(^|_)PORT$", name) and value.isdecimal() and int(value[:9]) > _LAST_PORT:
                yield Hit(path, f"{name} is {value}")
        for option in (*_PORT_OPTIONS, *_ADDRESS_OPTIONS):
            port = container.number(option)
            if port is not None and port > _LAST_PORT:
                yield Hit(container.command_path, f"{option} is {port}")
