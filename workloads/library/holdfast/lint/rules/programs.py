"""HF125, HF126, HF465, HF466, HF468: options of programs against the pods that run them."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, find_volume
from holdfast.lint.objects import Container, Job, Pod, as_int, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import ENV_COMPLETION_INDEX, ENV_GANG_ADDRESS, ENV_GPUS, PLACE

DOC_RUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
DOC_VLLM = "https://docs.vllm.ai/en/latest/cli/serve/"
_RANK_OPTIONS = (
    *("--node-rank", "--node_rank", "--machine_rank", "--machine-rank"),
    *("--partition", "--shard", "--shard-index", "--shard_index"),
    *("--shard-id", "--shard_id", "--worker-index"),
)
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
    *("--partitions", "--num-partitions", "--num-splits", "--n-splits", "--num-chunks"),
)
_INDEX = r"\$[({]JOB_COMPLETION_INDEX[)}]"
# Behind a name or a folder, `:8476` is a port and `/2024` is a folder.
_SHARE_OF = re.compile(rf"(?:(?<![\w./-]){_INDEX}[/:]|{_INDEX}-of-)(\d{{1,6}})(?!\d)")
_SHARES = ("--gpu-memory-utilization", "--gpu_memory_utilization", "--mem-fraction-static")
_COLLECTIVE = ("torchrun", "deepspeed", "accelerate", "mpirun", "vllm", "sglang")
_RANKS = ("--ranks", "--nproc-per-node", "--nproc_per_node", "--num_gpus", "--gpus-per-node")
_RANK_COUNT = "PET_NPROC_PER_NODE"
_HEADS = ("--rendezvous", "--rdzv-endpoint", "--rdzv_endpoint")
# Options and variables with the host of a member, which may have no port.
_HOST_OPTIONS = ("--master-addr", "--master_addr", "--main_process_ip", "--coordinator-address")
_HOST_VARIABLES = (
    "MASTER_ADDR",
    "PET_MASTER_ADDR",
    "PET_RDZV_ENDPOINT",
    "JAX_COORDINATOR_ADDRESS",
    "COORDINATOR_ADDRESS",
    "RAY_ADDRESS",
    "HEAD_ADDRESS",
    "LEADER_ADDRESS",
)
_DEFAULT_SHM = 64 * 2**20
_LOOPBACK = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
_POD_OF_A_SET = re.compile(r"(.+)-(\d{1,6})-\d{1,6}")


def _gang_at(host: str) -> str:
    return f"""\
template:
  spec:
    containers:
    - name: main
      image: train
      command: [torchrun, --rdzv-endpoint, '{host}:29500']
      resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


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
    for path, word in container.list_words():
        for count in _SHARE_OF.findall(word[:4_000]):
            if int(count) != completions:
                yield Hit(path, f"one of {count} shards, and the Job has {completions} indices")


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
        mount = find_mount(container, "/dev/shm") if container.gpus else None
        size = quantity(dig(find_volume(pod, dig(mount, "name")), "emptyDir", "sizeLimit"))
        if mount and size is not None and size <= _DEFAULT_SHM:
            path = (*container.path, "volumeMounts")
            yield Hit(path, f"/dev/shm gets {size / 2**20:g} MiB: no more than without a volume")


@rule(
    "HF125",
    "ranks-are-not-the-gpus",
    Severity.ERROR,
    on=Pod,
    what=(
        "A launcher starts more or fewer processes than the container has GPUs, or HOLDFAST_GPUS"
        " has another number."
    ),
    why=(
        "Processes without a GPU of their own fail or share one. A GPU without a process is paid"
        " for and idle."
    ),
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    fix="make --ranks and nvidia.com/gpu equal",
    base="container",
    bad="""\
command:
- torchrun
- --nproc-per-node=8
- train.py
""",
)
def ranks_are_not_the_gpus(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if not container.gpus:
            continue
        counts: dict[str, float | None] = {name: container.number(name) for name in _RANKS}
        counts[ENV_GPUS] = quantity(container.env.get(ENV_GPUS))
        # A job file may ask for several processes on one GPU.
        rank_count = quantity(container.env.get(_RANK_COUNT))
        if "torchrun" in container.programs and rank_count and rank_count < container.gpus:
            counts[_RANK_COUNT] = rank_count
        for name, count in counts.items():
            if count is not None and count != container.gpus:
                message = f"{name} {count:g}, and the container has {container.gpus} GPUs"
                yield Hit(container.command_path, message)


@rule(
    "HF126",
    "rendezvous-elsewhere",
    Severity.ERROR,
    on=Job,
    what="Members of a gang meet at a pod of another job, or at an address without a port.",
    why="They wait there until the deadline, or join the other gang.",
    source="https://jobset.sigs.k8s.io/docs/concepts/",
    base="jobset-job",
    fix="NAME-REPLICATEDJOB-0-0.NAME:29500, of the JobSet's own name",
    bad=_gang_at("other-workers-0-0.other"),
    good=_gang_at("train-workers-0-0.train"),
)
def rendezvous_elsewhere(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        for option in _HEADS:
            address = container.expand(container.option(option))
            host, _, port = address.partition(":")
            if address and "holdfast" in container.words and not port.isdecimal():
                yield Hit(container.command_path, f"{address} has no port")
            elif "$(" not in host and not _may_be_member(job, host):
                yield Hit(container.command_path, f"{host} is no pod of {job.owner.name}")
            elif address and _find_service_fault(job, host, context):
                yield Hit(container.command_path, _find_service_fault(job, host, context))
        for path, address in _list_hosts(container):
            host = address.partition("://")[2] or address
            host = host.partition(":")[0]
            if "$(" not in host and not _may_be_member(job, host):
                yield Hit(path, f"{host} is no pod of {job.owner.name}")
            fault = _find_service_fault(job, host, context)
            if fault:
                yield Hit(path, fault)
            has_names = dig(job.owner.spec, "network", "enableDNSHostnames") is not False
            if job.in_jobset and not has_names and _POD_OF_A_SET.fullmatch(host.partition(".")[0]):
                yield Hit(path, f"{host} has no name: enableDNSHostnames is false")
        address = container.expand(as_text(container.env.get(ENV_GANG_ADDRESS)))
        if job.pod and address and "$(" not in address:
            pods = f"{job.owner.name}-{PLACE}.{as_text(job.pod.spec.get('subdomain'))}"
            if address.partition(".svc")[0] not in (pods, f"{pods}.{job.owner.namespace}"):
                message = f"{ENV_GANG_ADDRESS} is {address}, and its pods are {pods}"
                yield Hit(container.path, message)


def _find_service_fault(job: Job, host: str, context: Context) -> str:
    """Returns why a host of a plain Job has no name: its Service gives names to no pods."""
    pod, dot, domain = host[:300].partition(".")
    if job.in_jobset or not dot or job.pod is None:
        return ""
    service = context.index.find("Service", domain.partition(".")[0], job.owner.namespace)
    names = (job.owner.name, as_text(job.pod.spec.get("hostname")))
    if service is None or (not pod.startswith(names[0]) and pod != names[1]):
        return ""
    if service.spec.get("clusterIP") == "None":
        return ""
    return f"Service {service.name} is not headless: {host} has no name"


def _list_hosts(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the addresses of a member in options and variables, each with its path."""
    for option in _HOST_OPTIONS:
        address = container.option(option)
        if address and "$(" not in address:
            yield container.command_path, address
    for path, name, value in container.variables:
        if name in _HOST_VARIABLES:
            yield path, container.expand(value)


def _may_be_member(job: Job, host: str) -> bool:
    """Returns whether a host may be a pod of the job's JobSet.

    One that is no pod of any JobSet may be a Service.
    """
    pod, dot, domain = host[:300].partition(".")
    match = _POD_OF_A_SET.fullmatch(pod)
    if host in _LOOPBACK:
        return job.parallelism < 2
    is_own = pod.rpartition("-")[0] == job.owner.name
    if not job.in_jobset and not dot and is_own and pod.rpartition("-")[2].isdecimal():
        return False
    if not job.in_jobset and dot and job.pod and is_own:
        index = pod.rpartition("-")[2]
        is_there = not index.isdecimal() or int(index[:9]) < job.parallelism
        is_near = domain.partition(".")[0] == as_text(job.pod.spec.get("subdomain"))
        return is_there and is_near
    if not job.in_jobset or "name" not in job.owner.metadata:
        return True
    subdomain = as_text(dig(job.owner.spec, "network", "subdomain")) or job.owner.name
    if not match:
        # A name of the JobSet's own domain is that of a pod.
        return not dot or domain.partition(".")[0] != subdomain or "$" in pod
    if dot and domain.partition(".")[0] != subdomain:
        return False
    # Pods have names below their subdomain only.
    if not dot:
        return not pod.startswith(f"{job.owner.name}-")
    for replicated_job in as_list(job.owner.spec.get("replicatedJobs")):
        if match[1] == f"{job.owner.name}-{as_text(dig(replicated_job, 'name'))}":
            jobs = as_int(dig(replicated_job, "replicas"))
            return int(match[2]) < (1 if jobs is None else jobs)
    return False
