"""HF780 to HF787: settings that are valid alone, and contradict what is next to them."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import FUSE_DRIVER, find_mount, find_volume, list_mount_options
from holdfast.lint.objects import (
    Container,
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
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary import pools as contract

DOC_PROBES = "https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/"
DOC_POD = "https://kubernetes.io/docs/concepts/workloads/pods/"
DOC_PRIORITY = "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"
DOC_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"
DOC_NODES = "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes"
DOC_RAY = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/kuberay-gcs-ft.html"
DOC_SPREAD = "https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/"
DOC_FUSE = "https://cloud.google.com/storage/docs/cloud-storage-fuse/file-system"
_LOCAL = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
_HOST_OPTION = re.compile(r"(?:^|\s)(?:-h|--host|-H)[ =]([a-z][\w.-]{1,250})")
_URL_HOST = re.compile(r"[a-z]{2,10}://([\w.-]{1,250})")
_LISTEN = re.compile(
    r"--(?:listen|http-address|bind|address|addr|listen-address)[= ]"
    r"(?:[\w.*]{0,60})?:(\d{2,5})(?!\d)"
)
_EVICTS = re.compile(r"\b(evicts?|preempts?|displaces?|pushes)\b", re.IGNORECASE)
_EVICTS_NOT = re.compile(r"\b(never|not|cannot|without)\s+(evict|preempt|push)", re.IGNORECASE)
_READS = re.compile(r"--(?:data|dataset|input|corpus|train|eval|images)[\w-]{0,20}=/")
_SIZE_OPTION = re.compile(
    r"--(?:stage|scratch|cache|buffer|spill|tmp|disk|local|shuffle)[\w-]{0,20}?[-_](gb|gib|mb)=(\d{1,9})"
)
_MACHINE = re.compile(r"[a-z]\w{1,4}-(?:standard|highmem|highcpu)-(\d{1,4})")
_MEETS = re.compile(r"rdzv|nnodes|node[-_]rank|MASTER_ADDR|torchrun", re.IGNORECASE)
# Where a RayService and a RayJob hold their cluster.
_CLUSTER_FIELDS = ("rayClusterConfig", "rayClusterSpec")
_ZONE = "topology.kubernetes.io/zone"


def _write_liveness(host: str) -> str:
    return f"""\
readinessProbe:
  tcpSocket:
    port: 8080
livenessProbe:
  exec:
    command:
    - redis-cli
    - -h
    - {host}
    - ping
ports:
- containerPort: 8080
"""


@rule(
    "HF780",
    "liveness-asks-others",
    Severity.ERROR,
    on=Pod,
    what="A liveness probe asks another service than the container itself.",
    why="When that service is slow, all pods are restarted at once, and none of them was ill.",
    source=DOC_PROBES,
    fix="let liveness ask the process only; readiness may look at what it needs",
    base="serving-container",
    bad=_write_liveness("redis.shared.svc"),
    good=_write_liveness("localhost"),
)
def check_liveness_targets(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        path = (*container.path, "livenessProbe", "exec", "command")
        words = as_texts(dig(container.body, "livenessProbe", "exec", "command"))
        text = " ".join(words)[:2_000]
        hosts = [*_HOST_OPTION.findall(text), *_URL_HOST.findall(text)]
        foreign = [host for host in hosts if host not in _LOCAL]
        if foreign:
            yield Hit(path, f"asks {foreign[0]}, not {container.name}")
        host = as_text(dig(container.body, "livenessProbe", "httpGet", "host"))
        if host and host not in _LOCAL and "$" not in host:
            yield Hit((*container.path, "livenessProbe", "httpGet", "host"), f"asks {host}")


def _write_pair(port: int) -> str:
    return f"""\
containers:
- name: main
  image: registry.example/server:1.4
  ports:
  - containerPort: 8080
  resources:
    limits:
      nvidia.com/gpu: 1
- name: proxy
  image: registry.example/proxy:1.4
  args:
  - --http-address=0.0.0.0:{port}
"""


@rule(
    "HF781",
    "port-taken-twice",
    Severity.ERROR,
    on=Pod,
    what="Two containers of a pod listen on the same port.",
    why="They share one network: the second one ends with address already in use.",
    source=DOC_POD,
    fix="give each container a port of its own",
    base="serving-pod",
    bad=_write_pair(8080),
    good=_write_pair(4180),
)
def check_taken_ports(pod: Pod, context: Context) -> Iterator[Hit]:
    owners: dict[tuple[int, str], str] = {}
    for container in pod.containers:
        is_sidecar = container.body.get("restartPolicy") == "Always"
        if not container.is_main and not is_sidecar:
            continue
        for key in sorted(_list_listening(container)):
            owner = owners.setdefault(key, container.name)
            if owner != container.name:
                yield Hit(container.path, f"listens on {key[0]}, as {owner} does")
                break


def _list_listening(container: Container) -> set[tuple[int, str]]:
    """Lists the ports on which a container listens, with their protocols."""
    ports: set[tuple[int, str]] = set()
    for entry in as_maps(container.body.get("ports")):
        number = as_int(entry.get("containerPort"))
        if number:
            ports.add((number, as_text(entry.get("protocol")) or "TCP"))
    for match in _LISTEN.finditer(" ".join(container.words)[:8_000]):
        ports.add((int(match[1]), "TCP"))
    return ports


def _write_class(policy: str) -> str:
    return f"""\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: realtime
value: 1000
preemptionPolicy: {policy}
description: Preempts batch work when GPUs are short.
"""


@rule(
    "HF782",
    "class-never-evicts",
    Severity.WARNING,
    on=Object,
    kinds=("PriorityClass",),
    what="A PriorityClass says that it evicts others, and its preemptionPolicy is Never.",
    why="Its pods wait behind those of lower classes.",
    source=DOC_PRIORITY,
    fix="preemptionPolicy: PreemptLowerPriority",
    bad=_write_class("Never"),
    good=_write_class("PreemptLowerPriority"),
)
def check_preemption(obj: Object, context: Context) -> Iterator[Hit]:
    text = as_text(obj.body.get("description"))[:500]
    is_never = obj.body.get("preemptionPolicy") == "Never"
    is_high = (as_int(obj.body.get("value")) or 0) > 0
    if is_never and is_high and _EVICTS.search(text) and not _EVICTS_NOT.search(text):
        yield Hit(("preemptionPolicy",), f"Never, and the description says: {text[:80]}")


def _write_scratch(size: str) -> str:
    return f"""\
volumes:
- name: scratch
  emptyDir:
    sizeLimit: {size}
containers:
- name: main
  image: registry.example/pack:1.4
  args:
  - --stage-gb=400
  resources:
    limits:
      nvidia.com/gpu: 1
      memory: 8Gi
  volumeMounts:
  - name: scratch
    mountPath: /scratch
"""


@rule(
    "HF783",
    "stage-larger-than-scratch",
    Severity.ERROR,
    on=Pod,
    what="A program is allowed more space for its files than the pod's scratch folders have.",
    why="The kubelet evicts the pod when it passes the limit.",
    source=DOC_VOLUMES,
    fix="raise sizeLimit, or lower the option",
    base="job-pod",
    bad=_write_scratch("10Gi"),
    good=_write_scratch("10Gi").replace("--stage-gb=400", "--stage-gb=8"),
)
def check_stage_sizes(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        sizes: list[float] = []
        for _, mount in container.mounts:
            volume = find_volume(pod, mount.get("name"))
            size = quantity(dig(volume, "emptyDir", "sizeLimit"))
            is_open = not ({"emptyDir", "configMap", "secret", "projected"} & volume.keys())
            sizes.append(float("inf") if is_open else size or 0.0)
        for path, word in container.list_words():
            match = _SIZE_OPTION.fullmatch(word[:200])
            gib = float(match[2]) / (1_024 if match[1] == "mb" else 1) if match else 0.0
            if match and sizes and 0 < max(sizes) < gib * GIB:
                message = f"{word[:60]}, and the largest folder has {max(sizes) / GIB:.0f} GiB"
                yield Hit(path, message)


def _write_cores(cores: int) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: research
spec:
  nodeSelector:
    node.kubernetes.io/instance-type: n2-standard-48
  containers:
  - name: main
    image: registry.example/pack:1.4
    resources:
      requests:
        cpu: {cores}
"""


@rule(
    "HF784",
    "all-cores-of-the-machine",
    Severity.ERROR,
    on=Pod,
    what="A pod asks for all cores of the machine type that it selects.",
    why="The kubelet and the system keep a part: no node fits, and the pod stays Pending.",
    source=DOC_NODES,
    fix="leave a core or two to the node",
    bad=_write_cores(48),
    good=_write_cores(46),
)
def check_machine_cores(pod: Pod, context: Context) -> Iterator[Hit]:
    label = "node.kubernetes.io/instance-type"
    machine = as_text(dig(pod.spec, "nodeSelector", label))
    match = _MACHINE.fullmatch(machine[:60])
    cores = pod.request("cpu")
    if match and cores >= float(match[1]):
        message = f"asks for {cores:g} of the {match[1]} cores of {machine}"
        yield Hit((*pod.spec_path, "nodeSelector", label), message)
    memory = pod.request("memory") / GIB
    largest = float(match[1]) * (8 if "highmem" in machine else 4) if match else 0.0
    if match and memory >= largest:
        message = f"asks for {memory:.0f} of the {largest:.0f} GiB of {machine}"
        yield Hit((*pod.spec_path, "nodeSelector", label), message)


def _write_head(selector: str) -> str:
    return f"""\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: tune
  namespace: serving
spec:
  headGroupSpec:
    rayStartParams: {{}}
    template:
      spec:
        terminationGracePeriodSeconds: 15
        nodeSelector:
          {selector}
        tolerations:
        - key: cloud.google.com/gke-spot
          operator: Equal
          value: "true"
          effect: NoSchedule
        - key: provisioning-tier
          operator: Equal
          value: preemptible
          effect: NoSchedule
        containers:
        - name: head
          image: registry.example/ray:1.4
"""


@rule(
    "HF785",
    "ray-head-on-spot",
    Severity.ERROR,
    on=Object,
    kinds=("RayCluster", "RayJob", "RayService"),
    what="The head of a Ray cluster runs on Spot.",
    why="With the head the whole cluster is lost, and all work in it.",
    source=DOC_RAY,
    fix="keep the head on demand; workers may be on Spot",
    bad=_write_head('cloud.google.com/gke-spot: "true"'),
    good=_write_head("kubernetes.io/arch: amd64").replace(
        """\
        - key: provisioning-tier
          operator: Equal
          value: preemptible
          effect: NoSchedule
""",
        "",
    ),
)
def check_ray_head(obj: Object, context: Context) -> Iterator[Hit]:
    clusters = [obj.spec, *(as_map(obj.spec.get(field)) for field in _CLUSTER_FIELDS)]
    has_options = any("gcsFaultToleranceOptions" in cluster for cluster in clusters)
    if has_options or obj.annotations.get("ray.io/ft-enabled") == "true":
        return
    for pod in obj.pods:
        if "headGroupSpec" not in pod.path:
            continue
        if dig(pod.spec, "nodeSelector", contract.LABEL_SPOT) == "true":
            path = (*pod.spec_path, "nodeSelector", contract.LABEL_SPOT)
            yield Hit(path, "an eviction of the head ends the cluster")


def _write_spread(key: str) -> str:
    return f"""\
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: {key}
  whenUnsatisfiable: DoNotSchedule
  labelSelector:
    matchLabels:
      batch.kubernetes.io/job-name: train
containers:
- name: main
  image: registry.example/trainer:1.4
  command:
  - torchrun
  - --nnodes=2
  - --node-rank=$(JOB_COMPLETION_INDEX)
  - train.py
  resources:
    limits:
      nvidia.com/gpu: 1
"""


@rule(
    "HF786",
    "gang-spread-over-zones",
    Severity.WARNING,
    on=Pod,
    what="The members of one training are forced into different zones.",
    why="Their gradients cross zones: each step waits for it, and the traffic is billed.",
    source=DOC_SPREAD,
    fix="keep a gang in one zone, by affinity or a placement policy",
    base="job-pod",
    bad=_write_spread("topology.kubernetes.io/zone"),
    good=_write_spread("kubernetes.io/hostname"),
)
def check_gang_spread(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.job is None or pod.replicas < 2:
        return
    text = " ".join(container.script for container in pod.main_containers)[:20_000]
    names = {name for container in pod.main_containers for name in container.env}
    if not _MEETS.search(text) and "MASTER_ADDR" not in names:
        return
    for index, entry in enumerate(as_list(pod.spec.get("topologySpreadConstraints"))):
        is_forced = dig(entry, "whenUnsatisfiable") in (None, "DoNotSchedule")
        if is_forced and dig(entry, "topologyKey") == _ZONE:
            path = (*pod.spec_path, "topologySpreadConstraints", index, "topologyKey")
            yield Hit(path, "spreads the ranks of one training over zones")


def _write_bucket(options: str) -> str:
    return f"""\
metadata:
  annotations:
    gke-gcsfuse/volumes: "true"
spec:
  containers:
  - name: main
    image: registry.example/trainer:1.4
    args:
    - --data=/data/lidar/2024
    resources:
      limits:
        nvidia.com/gpu: 1
    volumeMounts:
    - name: data
      mountPath: /data
  volumes:
  - name: data
    csi:
      driver: gcsfuse.csi.storage.gke.io
      readOnly: true
      volumeAttributes:
        bucketName: lidar
        mountOptions: {options}
"""


@rule(
    "HF787",
    "folders-not-visible",
    Severity.WARNING,
    on=Pod,
    what="A program reads a folder of a mounted bucket, and the mount has no implicit-dirs.",
    why="Folders that gsutil or a client wrote have no objects of their own: they look empty.",
    source=DOC_FUSE,
    fix="add implicit-dirs to mountOptions",
    base="job-template",
    bad=_write_bucket("file-mode=644"),
    good=_write_bucket("implicit-dirs"),
)
def check_folders(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        for _, word in container.list_words():
            folder = word.partition("=")[2] or word
            mount = find_mount(container, folder) if folder.startswith("/") else None
            volume = find_volume(pod, mount.get("name")) if mount else {}
            options = list_mount_options(volume)
            is_bucket = dig(volume, "csi", "driver") == FUSE_DRIVER
            place = as_text(mount.get("mountPath")).rstrip("/") if mount else ""
            is_inside = folder.rstrip("/") != place
            is_read = _READS.match(word) and "implicit-dirs" not in options
            if is_bucket and is_read and is_inside and options:
                path = (*pod.spec_path, "volumes")
                yield Hit(path, f"{folder} may look empty: no implicit-dirs")
                return
