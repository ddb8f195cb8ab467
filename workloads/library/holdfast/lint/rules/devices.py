"""HF656 to HF659: GPUs on the wrong container, or shared in ways that GKE does not have."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Pod, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.servers import find_server
from holdfast.vocabulary import pools as contract

DOC_GPUS = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"
DOC_SHARING = "https://cloud.google.com/kubernetes-engine/docs/how-to/timesharing-gpus"
DOC_PARTITIONS = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus-multi"
DOC_RESERVATIONS = "https://cloud.google.com/kubernetes-engine/docs/how-to/consuming-reservations"
_ON_GPU = re.compile(
    r"--device[= ]cuda|\btorchrun\b|--nproc[-_]per[-_]node[= ]\d|--bf16\b|--gpus[= ][1-9]"
)
_HELPER = re.compile(r"proxy|exporter|sidecar|agent|tensorboard|uploader|logs?\b|sync|metrics")
_STRATEGY = "cloud.google.com/gke-gpu-sharing-strategy"
_STRATEGIES = ("time-sharing", "mps")
_PARTITION = "cloud.google.com/gke-gpu-partition-size"
_RESERVATION = ("cloud.google.com/reservation-name", "cloud.google.com/reservation-affinity")
_ARCHES = ("amd64", "arm64")


def _pair(first: str, second: str) -> str:
    return f"""\
containers:
- name: main
  image: registry.example/trainer:1.4
  command: [python, train.py, --device=cuda]
  resources: {{limits: {{memory: 8Gi{first}}}}}
- name: log-uploader
  image: registry.example/uploader:1.4
  command: [uploader, --once]
  resources: {{limits: {{memory: 1Gi{second}}}}}
"""


_GPU = ", nvidia.com/gpu: 1"


@rule(
    "HF656",
    "gpu-on-another-container",
    Severity.ERROR,
    on=Pod,
    what="A program of CUDA runs in a container without a GPU, or a helper has the GPU.",
    why="The program finds no device, on a node that is paid for.",
    source=DOC_GPUS,
    fix="state nvidia.com/gpu in the limits of the container that computes",
    base="job-pod",
    bad=_pair("", _GPU),
    good=_pair(_GPU, ""),
)
def gpu_on_another_container(pod: Pod, context: Context) -> Iterator[Hit]:
    accelerator = dig(pod.spec, "nodeSelector", contract.LABEL_ACCELERATOR)
    needs_gpu = any(map(_computes_without_gpu, pod.main_containers))
    for container in pod.main_containers:
        if container.gpus:
            if _HELPER.search(container.name[:100]) and needs_gpu:
                yield Hit((*container.path, "resources"), f"{container.name} has the GPU")
            continue
        is_on_gpu = find_server(container) in ("vLLM", "SGLang") or _computes(container)
        if is_on_gpu and (accelerator or pod.gpus) and not _has_claims(container):
            yield Hit((*container.path, "resources"), f"{container.name} has no GPU")


def _computes(container: Container) -> bool:
    return bool(_ON_GPU.search(" ".join(container.words)[:8_000]))


def _computes_without_gpu(container: Container) -> bool:
    return not container.gpus and (_computes(container) or bool(find_server(container)))


def _has_claims(container: Container) -> bool:
    """Returns whether devices come by a claim, or as another resource."""
    if dig(container.body, "resources", "claims"):
        return True
    limits = as_map(dig(container.body, "resources", "limits"))
    return any(str(name).startswith(("nvidia.com/", "google.com/", "amd.com/")) for name in limits)


def _write_sharing(strategy: str) -> str:
    return f"""\
nodeSelector:
  holdfast.dev/pool-class: null
  cloud.google.com/gke-accelerator: nvidia-l4
  {_STRATEGY}: {strategy}
"""


@rule(
    "HF657",
    "gpu-shared-wrongly",
    Severity.ERROR,
    on=Pod,
    what="A pod asks for a way of sharing GPUs that GKE does not have, or for several shared ones.",
    why="No node has the label, or the device plugin refuses the pod.",
    source=DOC_SHARING,
    fix="time-sharing or mps, and one nvidia.com/gpu in each container",
    base="serving-pod",
    bad=_write_sharing("timesharing"),
    good=_write_sharing("time-sharing"),
)
def gpu_shared_wrongly(pod: Pod, context: Context) -> Iterator[Hit]:
    strategy = as_text(dig(pod.spec, "nodeSelector", _STRATEGY))
    path = (*pod.spec_path, "nodeSelector", _STRATEGY)
    if strategy and strategy not in _STRATEGIES:
        yield Hit(path, f"no strategy {strategy}; there are {', '.join(_STRATEGIES)}")
    for container in pod.main_containers:
        if strategy in _STRATEGIES and container.gpus > 1:
            yield Hit(path, f"{container.name} asks for {container.gpus} shared GPUs: one at most")


def _write_partition(size: str) -> str:
    return f"""\
nodeSelector:
  holdfast.dev/pool-class: null
  cloud.google.com/gke-accelerator: nvidia-tesla-a100
  {_PARTITION}: {size}
"""


@rule(
    "HF658",
    "partition-unknown",
    Severity.ERROR,
    on=Pod,
    what="A pod selects a size of GPU partitions that its GPU does not have.",
    why="No node has the label: the pod stays Pending.",
    source=DOC_PARTITIONS,
    fix="as 1g.5gb on an A100 of 40 GB, 1g.10gb on 80 GB",
    base="serving-pod",
    bad=_write_partition("1g.10gb"),
    good=_write_partition("1g.5gb"),
)
def partition_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    size = as_text(dig(pod.spec, "nodeSelector", _PARTITION))
    accelerator = as_text(dig(pod.spec, "nodeSelector", contract.LABEL_ACCELERATOR))
    sizes = load_table("partitions").get(accelerator)
    if size and sizes and size not in sizes:
        message = f"{accelerator} has no {size}; it has {', '.join(sizes)}"
        yield Hit((*pod.spec_path, "nodeSelector", _PARTITION), message)


def _write_reservation(labels: str) -> str:
    return f"""\
nodeSelector: {{cloud.google.com/reservation-name: h100{labels}}}
"""


@rule(
    "HF659",
    "reservation-of-spot",
    Severity.ERROR,
    on=Pod,
    what="A pod asks for a reservation and for Spot, or for an architecture that no node has.",
    why="Reserved machines are never Spot: no node has both labels.",
    source=DOC_RESERVATIONS,
    fix="select one of the two",
    base="job-pod",
    bad=_write_reservation(""),
    good="nodeSelector: {cloud.google.com/gke-spot: 'true'}",
)
def check_reservation(pod: Pod, context: Context) -> Iterator[Hit]:
    selector = as_map(pod.spec.get("nodeSelector"))
    for label in _RESERVATION:
        is_reserved = dig(selector, label) not in (None, "none", "any")
        if is_reserved and dig(selector, contract.LABEL_SPOT) == "true":
            yield Hit((*pod.spec_path, "nodeSelector", label), "a reservation has no Spot nodes")
            return
    for path, toleration in pod.tolerations:
        value = toleration.get("value")
        if toleration.get("key") == "kubernetes.io/arch" and value not in (None, *_ARCHES):
            yield Hit((*path, "value"), f"no node has the architecture {value}")
