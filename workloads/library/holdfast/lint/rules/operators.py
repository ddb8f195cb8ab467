"""HF680 to HF685: what operators of Ray, Kubeflow, LeaderWorkerSet and TPUs start."""

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Object, Pod, as_int, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import GIB, quantity

DOC_RAY = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html"
DOC_KUBEFLOW = "https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/"
DOC_GROUPS = "https://docs.vllm.ai/en/latest/deployment/frameworks/lws/"
DOC_TPUS = "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus"
_RAY_KINDS = ("RayCluster", "RayJob", "RayService")
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}")
_RAY_IMAGE = re.compile(
    r"(?:^|/)ray(?:-ml|-llm)?(?:/[\w-]{1,60})?:(2\.\d{1,3}\.\d{1,3})([\w.-]{0,60})"
)
_RAY_PORT = re.compile(r"ray start --head[^\n;&|]{0,200}?--port[= ](\d{1,5})")
_RAY_ADDRESS = re.compile(r"ray start[^\n;&|]{0,200}?--address[= ]['\"]?[^\s:]{1,200}:(\d{1,5})")
_PYTHON = re.compile(r"py3\d{1,2}")
_REPLICA_SPECS = {
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
    "TFJob": ("tfReplicaSpecs", "tensorflow"),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost"),
}
_ROLES = {
    "PyTorchJob": ("Master", "Worker"),
    "XGBoostJob": ("Master", "Worker"),
    "MPIJob": ("Launcher", "Worker"),
    "TFJob": ("Chief", "Master", "PS", "Worker", "Evaluator"),
}
_TPU = "google.com/tpu"
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_TPU_TYPE = "cloud.google.com/gke-tpu-accelerator"
_TPU_DIMENSIONS = {
    "tpu-v4-podslice": 3,
    "tpu-v5p-slice": 3,
    "tpu-v5-lite-podslice": 2,
    "tpu-v6e-slice": 2,
}
_GROUP_SIZE = re.compile(r"--ray_cluster_size[= ](\d{1,4})\b")


def _ray(gpus: int = 1, image: str = "2.41.0", replicas: int = 2) -> str:
    return f"""\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: tune
  namespace: serving
spec:
  rayVersion: "2.41.0"
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      spec:
        containers:
        - name: head
          image: rayproject/ray:2.41.0
  workerGroupSpecs:
  - groupName: workers
    replicas: {replicas}
    minReplicas: 0
    maxReplicas: 8
    rayStartParams:
      num-gpus: "{gpus}"
    template:
      spec:
        containers:
        - name: worker
          image: rayproject/ray:{image}
          resources:
            limits:
              memory: 16Gi
              nvidia.com/gpu: 1
        nodeSelector:
          holdfast.dev/pool-class: serving
        tolerations:
        - key: nvidia.com/gpu
          operator: Exists
          effect: NoSchedule
"""


def _write_join(port: int) -> str:
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
            image: a:1
            command:
              - bash
              - -c
              - exec ray start --head --port=6379 --block
    workerTemplate:
      spec:
        containers:
          - name: main
            image: a:1
            command:
              - bash
              - -c
              - exec ray start --address=$(LWS_LEADER_ADDRESS):{port} --block
"""


@rule(
    "HF680",
    "ray-counts-wrong",
    Severity.ERROR,
    on=Object,
    kinds=_RAY_KINDS,
    what="A group of a Ray cluster states more than its pods have, or replicas out of its bounds.",
    why="Ray places work on GPUs or memory that are not there; the operator refuses the bounds.",
    source=DOC_RAY,
    fix="leave num-gpus and num-cpus out: Ray reads the limits of the container",
    bad=_ray(gpus=4),
    good=_ray(),
)
def ray_counts_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    for path, group in _list_groups(obj):
        replicas, min_replicas, max_replicas = (
            as_int(group.get(field)) for field in ("replicas", "minReplicas", "maxReplicas")
        )
        if max_replicas is not None and (min_replicas or 0) > max_replicas:
            yield Hit(
                (*path, "minReplicas"),
                f"minReplicas {min_replicas} is above maxReplicas {max_replicas}",
            )
        elif max_replicas is not None and (replicas or 0) > max_replicas:
            yield Hit(
                (*path, "replicas"), f"replicas {replicas} is above maxReplicas {max_replicas}"
            )
        is_scaled = dig(obj.body, *path[:-2], "enableInTreeAutoscaling") is True
        if "workerGroupSpecs" in path and replicas == 0 and max_replicas and not is_scaled:
            yield Hit((*path, "replicas"), "0 workers, and enableInTreeAutoscaling is not set")
        container = _find_container(obj, path)
        if container:
            yield from _check_start(path, as_map(group.get("rayStartParams")), container)


@rule(
    "HF685",
    "ray-port-differs",
    Severity.ERROR,
    on=Object,
    what="Workers of Ray join at another port than the one on which the head listens.",
    why="They wait for the head for ever, on GPUs that are paid for.",
    source=DOC_RAY,
    fix="write the same port in both commands",
    bad=_write_join(6380),
    good=_write_join(6379),
)
def ray_port_differs(obj: Object, context: Context) -> Iterator[Hit]:
    ports: set[int] = set()
    for pod in obj.pods:
        for container in pod.containers:
            ports |= set(map(int, _RAY_PORT.findall(container.script)))
    for pod in obj.pods if len(ports) == 1 else ():
        for container in pod.containers:
            for port in _RAY_ADDRESS.findall(container.script):
                if int(port) not in ports:
                    message = f"joins at port {port}, and the head has {min(ports)}"
                    yield Hit(container.command_path, message)


def _list_groups(obj: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the head and the groups of workers of a Ray cluster, each with its path."""
    roots: list[Path] = [("spec",)]
    roots += [("spec", field) for field in ("rayClusterSpec", "rayClusterConfig")]
    for root in roots:
        head = dig(obj.body, *root, "headGroupSpec")
        if isinstance(head, dict):
            yield (*root, "headGroupSpec"), head
        for index, group in enumerate(as_maps(dig(obj.body, *root, "workerGroupSpecs"))):
            yield (*root, "workerGroupSpecs", index), group


def _find_container(obj: Object, path: Path) -> Container | None:
    for pod in obj.pods:
        if pod.path == (*path, "template"):
            return next(iter(pod.main_containers), None)
    return None


def _check_start(path: Path, settings: dict[str, Any], container: Container) -> Iterator[Hit]:
    path = (*path, "rayStartParams")
    for name, value in settings.items():
        if not isinstance(value, str):
            yield Hit((*path, name), f"{value} is no text: the API server refuses it")
    gpus = quantity(settings.get("num-gpus"))
    if gpus is not None and gpus > container.gpus:
        yield Hit((*path, "num-gpus"), f"{gpus:g} GPUs, and the container has {container.gpus}")
    cores = quantity(settings.get("num-cpus"))
    limit = quantity(container.limit("cpu")) or quantity(container.request("cpu"))
    if cores and limit and cores > 4 * max(1.0, limit):
        yield Hit((*path, "num-cpus"), f"{cores:g} cores, and the container has {limit:g}")
    store = quantity(settings.get("object-store-memory"))
    memory = quantity(container.limit("memory"))
    if store and memory and store > memory:
        message = f"{store / GIB:.0f} GiB, with a limit of {memory / GIB:.0f} GiB"
        yield Hit((*path, "object-store-memory"), message)


@rule(
    "HF681",
    "ray-versions-differ",
    Severity.ERROR,
    on=Object,
    kinds=_RAY_KINDS,
    what="The images of a Ray cluster have different versions, or another one than rayVersion.",
    why="Head and workers of different versions of Ray or Python refuse each other.",
    source=DOC_RAY,
    fix="use one image for the head and all workers, and state its version",
    bad=_ray(image="2.9.0"),
    good=_ray(),
)
def ray_versions_differ(obj: Object, context: Context) -> Iterator[Hit]:
    first_version = first_python = ""
    for root in (("spec",), ("spec", "rayClusterSpec"), ("spec", "rayClusterConfig")):
        version = as_text(dig(obj.body, *root, "rayVersion"))
        first_version = first_version or (version if _VERSION.fullmatch(version[:20]) else "")
    for path, _ in _list_groups(obj):
        container = _find_container(obj, path)
        image = as_text(container.body.get("image"))[:500] if container else ""
        match = _RAY_IMAGE.search(image)
        if container is None or match is None:
            continue
        place = (*container.path, "image")
        python = _PYTHON.search(match[2])
        if first_version and match[1] != first_version:
            yield Hit(place, f"Ray {match[1]}, and the cluster is of {first_version}")
        elif python and first_python and python[0] != first_python:
            yield Hit(place, f"{python[0]}, and the head has {first_python}")
        first_version = first_version or match[1]
        first_python = first_python or (python[0] if python else "")


def _pytorch(name: str, processes: int = 1) -> str:
    return f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: bert
  namespace: serving
spec:
  nprocPerNode: {processes}
  runPolicy:
    cleanPodPolicy: Running
    ttlSecondsAfterFinished: 86400
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: {name}
              image: registry.example/bert:1.4
              resources:
                limits:
                  memory: 16Gi
                  nvidia.com/gpu: 1
          nodeSelector:
            holdfast.dev/pool-class: serving
          tolerations:
            - key: nvidia.com/gpu
              operator: Exists
              effect: NoSchedule
"""


@rule(
    "HF682",
    "replica-spec-wrong",
    Severity.ERROR,
    on=Object,
    kinds=(*_REPLICA_SPECS, "MPIJob"),
    what="A job of Kubeflow lacks the container that its operator fills in, or miscounts ranks.",
    why="The operator refuses it, or ranks wait for others that never come.",
    source=DOC_KUBEFLOW,
    fix="name the container pytorch; nprocPerNode and slots are the GPUs of one pod",
    bad=_pytorch("trainer"),
    good=_pytorch("pytorch"),
)
def replica_spec_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    yield from _check_roles(obj)
    if obj.kind == "MPIJob":
        yield from _check_slots(obj)
        return
    field, name = _REPLICA_SPECS[obj.kind]
    specs = as_map(obj.spec.get(field))
    if obj.kind == "PyTorchJob" and (as_int(dig(specs, "Master", "replicas")) or 1) > 1:
        yield Hit(("spec", field, "Master", "replicas"), "there is one Master")
    for pod in obj.pods:
        names = [container.name for container in pod.main_containers]
        if name not in names:
            yield Hit((*pod.spec_path, "containers"), f"no container is named {name}")
    processes = quantity(obj.spec.get("nprocPerNode"))
    for pod in obj.pods if processes else ():
        if pod.gpus and processes != pod.gpus:
            message = f"{processes:g} processes, and a pod has {pod.gpus} GPUs"
            yield Hit(("spec", "nprocPerNode"), message)
            return


def _check_roles(obj: Object) -> Iterator[Hit]:
    """Yields replica specs of a role that the operator does not have."""
    roles = _ROLES.get(obj.kind, ())
    field = _REPLICA_SPECS[obj.kind][0] if obj.kind in _REPLICA_SPECS else "mpiReplicaSpecs"
    for role in as_map(obj.spec.get(field)) if roles else ():
        if role not in roles:
            message = f"no role {role}; there are {', '.join(roles)}"
            yield Hit(("spec", field, role), message, on_key=True)


def _check_slots(obj: Object) -> Iterator[Hit]:
    slots = as_int(obj.spec.get("slotsPerWorker")) or 1
    workers = as_int(dig(obj.spec, "mpiReplicaSpecs", "Worker", "replicas")) or 0
    for pod in obj.pods:
        is_worker = "Worker" in pod.path and "slotsPerWorker" in obj.spec
        if is_worker and pod.gpus and slots != pod.gpus:
            message = f"{slots} slots, and a worker has {pod.gpus} GPUs"
            yield Hit(("spec", "slotsPerWorker"), message)
        for container in pod.main_containers if "Launcher" in pod.path else ():
            ranks = container.number("-np") or container.number("-n")
            if ranks and workers and ranks > workers * slots:
                message = f"{ranks} ranks, and {workers} workers have {workers * slots} slots"
                yield Hit(container.command_path, message)


def _group(size: int) -> str:
    return f"""\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: big
  namespace: serving
spec:
  leaderWorkerTemplate:
    size: {size}
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate:
      spec:
        volumes:
          - name: shm
            emptyDir:
              medium: Memory
        containers:
          - name: main
            image: registry.example/vllm:1.4
            command:
              - vllm
              - serve
              - m
              - --tensor-parallel-size=1
              - --pipeline-parallel-size=2
            resources:
              limits:
                memory: 16Gi
                nvidia.com/gpu: 1
            volumeMounts:
              - name: shm
                mountPath: /dev/shm
        nodeSelector:
          holdfast.dev/pool-class: serving
        tolerations:
          - key: nvidia.com/gpu
            operator: Exists
            effect: NoSchedule
"""


@rule(
    "HF683",
    "group-is-not-the-split",
    Severity.ERROR,
    on=Object,
    kinds=("LeaderWorkerSet",),
    what="A model is split over more or fewer GPUs than a group of pods has.",
    why="The server waits for GPUs that never come, or some are paid for and idle.",
    source=DOC_GROUPS,
    fix="size times the GPUs of a pod is the tensor times the pipeline parallel size",
    bad=_group(4),
    good=_group(2),
)
def group_is_not_the_split(obj: Object, context: Context) -> Iterator[Hit]:
    size = as_int(dig(obj.spec, "leaderWorkerTemplate", "size")) or 1
    gpus = [pod.gpus for pod in obj.pods]
    has_leader = len(gpus) > 1
    total = gpus[0] + gpus[-1] * (size - 1) if has_leader else sum(gpus) * size
    for pod in obj.pods:
        for container in pod.main_containers:
            match = _GROUP_SIZE.search(container.script)
            if match and int(match[1]) != size:
                yield Hit(container.command_path, f"a cluster of {match[1]}, and a group of {size}")
            tensor = _find_number(container, "--tensor-parallel-size", "--tp")
            pipeline = _find_number(container, "--pipeline-parallel-size", "--pp") or 1
            data = _find_number(container, "--data-parallel-size") or 1
            if not tensor or not total or ("ray" not in container.script and len(gpus) > 2):
                continue
            split = tensor * pipeline * data
            if split != total:
                yield Hit(container.command_path, f"splits over {split} GPUs; a group has {total}")


def _find_number(container: Container, *options: str) -> int | None:
    """Returns the number of the first of these options that has one; vLLM takes underscores too."""
    for option in options:
        underscored = f"--{option[2:].replace('-', '_')}"
        number = container.number(option) or container.number(underscored)
        if number:
            return number
    return None


def _tpu(topology: str) -> str:
    return f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: serving
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 4
  backoffLimit: 0
  activeDeadlineSeconds: 86400
  ttlSecondsAfterFinished: 86400
  template:
    spec:
      restartPolicy: Never
      nodeSelector:
        {_TPU_TYPE}: tpu-v5-lite-podslice
        {_TOPOLOGY}: {topology}
      containers:
        - name: jax
          image: registry.example/jax:1.4
          command:
            - python
            - train.py
          resources:
            limits:
              memory: 16Gi
              {_TPU}: 4
"""


@rule(
    "HF684",
    "topology-is-not-the-chips",
    Severity.ERROR,
    on=Pod,
    what="The chips that pods ask for are not those of the topology that they select.",
    why="The slice has more or fewer hosts than the job has pods: the ranks never meet.",
    source=DOC_TPUS,
    fix="the product of the topology is the chips of a pod times the pods",
    bad=_tpu("4x8"),
    good=_tpu("4x4"),
)
def topology_is_not_the_chips(pod: Pod, context: Context) -> Iterator[Hit]:
    topology = as_text(dig(pod.spec, "nodeSelector", _TOPOLOGY))
    chips = sum(quantity(container.limit(_TPU)) or 0 for container in pod.main_containers)
    if pod.job is None or not chips or not re.fullmatch(r"\d{1,3}(x\d{1,3}){1,2}", topology[:20]):
        return
    kind = as_text(dig(pod.spec, "nodeSelector", _TPU_TYPE))
    dimensions = _TPU_DIMENSIONS.get(kind)
    if dimensions and topology.count("x") + 1 != dimensions:
        path = (*pod.spec_path, "nodeSelector", _TOPOLOGY)
        yield Hit(path, f"a topology of {kind} has {dimensions} numbers")
        return
    total = prod(int(part) for part in topology.split("x"))
    pods = as_int(pod.job.spec.get("parallelism")) or 1
    path = (*pod.spec_path, "nodeSelector", _TOPOLOGY)
    if chips * pods != total:
        message = f"{topology} has {total} chips, and {pods} pods ask for {chips:g} each"
        yield Hit(path, message)
