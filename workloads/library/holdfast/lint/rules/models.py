"""HF58x: models and programs against the memory, the cores and the rights of their pods."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Object, Pod, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.contents import find_model, find_size
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.machines import ACCELERATORS

DOC_VLLM = "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html"
DOC_LINKS = "https://docs.vllm.ai/en/latest/deployment/k8s/"
DOC_GATED = "https://huggingface.co/docs/hub/models-gated"
_SPLITS = (
    "--tensor-parallel-size",
    "-tp",
    "--tp",
    "--tp-size",
    "--pipeline-parallel-size",
    "--tensor_parallel_size",
    "--pipeline_parallel_size",
    "-pp",
    "--pp",
    "--pp-size",
)
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HUGGINGFACE_TOKEN")
_WORKERS = ("--num-workers", "--num_workers", "--dataloader_num_workers", "--workers", "-w")
_RANKS = ("--nproc-per-node", "--nproc_per_node")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MOST_PER_CORE = 4
_OTHER_DEVICES = re.compile(r"(?:^|[-_/.:])(cpu|rocm|hpu|neuron|xpu)(?:[-_.:]|$|\d)")
_ARCH = re.compile(r"[-_.:/](arm64|aarch64|amd64|x86_64)(?:[-_.]|$)")
_MACHINE_LABELS = ("cloud.google.com/machine-family", "node.kubernetes.io/instance-type")
_ARM = ("arm64", "aarch64")


def _serve(model: str, *options: str) -> str:
    words = ", ".join(["--model", model, *options])
    return f"image: vllm/vllm-openai:v0.9.2\nargs: [{words}]"


@rule(
    "HF580",
    "model-larger-than-the-gpu",
    Severity.ERROR,
    on=Pod,
    what="The weights of a model, or what a server keeps in addition, do not fit into memory.",
    why="The server ends with out of memory at each start, on a GPU that is paid for.",
    source=DOC_VLLM,
    fix="split the model over more GPUs, or take a quantized one or a larger GPU",
    base="serving-container",
    bad=_serve("Qwen/Qwen2.5-32B-Instruct"),
    good=_serve("Qwen/Qwen2.5-7B-Instruct"),
)
def compare_models(pod: Pod, context: Context) -> Iterator[Hit]:
    names: set[str] = set()
    for demand in context.place(pod).find_demands(contract.LABEL_ACCELERATOR):
        names |= set(demand.values)
    for pool in context.place(pod).platform_pools if not names else ():
        names.add(pool.accelerator)
    sizes = [ACCELERATORS[name].memory_gib for name in names if name in ACCELERATORS]
    for container in pod.main_containers:
        weights = find_size(container)
        if weights and sizes and container.gpus and len(sizes) == len(names):
            memory = max(sizes) * GIB * container.gpus * _count_others(container)
            offloaded = (quantity(container.option("--cpu-offload-gb")) or 0.0) * GIB
            if weights - offloaded > memory:
                message = f"{weights / GIB:.0f} GiB of weights, and {memory / GIB:.0f} GiB of GPUs"
                yield Hit(container.command_path, message)
        yield from _check_host_memory(container)


def _count_others(container: Container) -> int:
    """Counts the pods over which a server splits its model."""
    split = 1
    for option in _SPLITS:
        split *= container.number(option) or 1
    return max(1, split // max(1, container.gpus))


def _check_host_memory(container: Container) -> Iterator[Hit]:
    limit = quantity(container.limit("memory"))
    for option in ("--swap-space", "--cpu-offload-gb"):
        gib = quantity(container.option(option)) or 0.0
        size = gib * GIB * max(1, container.gpus)
        if limit and size > limit:
            message = f"{option} takes {size / GIB:.0f} GiB, of a limit of {limit / GIB:.0f} GiB"
            yield Hit(container.command_path, message)


@rule(
    "HF581",
    "gated-model-without-token",
    Severity.ERROR,
    on=Pod,
    what="A server downloads a model that needs an accepted license, and has no token.",
    why="The download is refused with 401, and the container restarts for ever.",
    source=DOC_GATED,
    fix="give HF_TOKEN by a secretKeyRef, or load the weights from a bucket",
    base="serving-container",
    bad=_serve("meta-llama/Llama-3.1-8B-Instruct"),
    good=_serve("meta-llama/Llama-3.1-8B-Instruct")
    + "\nenv: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]",
)
def require_token(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        model = find_model(container)
        is_gated = model.startswith(tuple(load_table("models")["gated"]))
        if not is_gated or container.body.get("envFrom") or _has_cache(container, pod):
            continue
        has_variable = any(name in container.env for name in _TOKENS)
        if not has_variable and not container.option("--hf-token"):
            yield Hit(container.command_path, f"{model} is gated, and there is no HF_TOKEN")


def _has_cache(container: Container, pod: Pod) -> bool:
    """Returns whether a volume that outlives the pod may hold the weights."""
    mounted = {as_text(mount.get("name")) for _, mount in container.mounts}
    for _, volume in pod.volumes:
        if as_text(volume.get("name")) in mounted and not {"emptyDir", "configMap"} & volume.keys():
            return True
    return bool(as_list(pod.spec.get("initContainers")))


@rule(
    "HF582",
    "more-threads-than-cores",
    Severity.WARNING,
    on=Pod,
    what="A program starts far more workers or threads than its container has cores.",
    why="They take turns on the cores, and their memory adds up: the GPU waits for data.",
    source="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    fix="state at most one for each core that the container requests",
    base="container",
    bad="""\
command:
- python
- train.py
- --num-workers
- '64'
resources:
  limits:
    cpu: 6
""",
    good="""\
command:
- python
- train.py
- --num-workers
- '6'
resources:
  limits:
    cpu: 6
""",
)
def compare_threads(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        cores = quantity(container.limit("cpu")) or quantity(container.request("cpu"))
        if not cores:
            continue
        counts = {option: container.number(option) for option in _WORKERS}
        counts |= {name: container.number("", name) for name in _THREADS}
        ranks = max(filter(None, map(container.number, _RANKS)), default=1)
        for name, count in counts.items():
            if count and count * ranks > max(_MOST_PER_CORE, cores * _MOST_PER_CORE):
                suffix = f" in each of {ranks} processes" if ranks > 1 else ""
                yield Hit(container.path, f"{name} is {count}{suffix}, with {cores:g} cores")


@rule(
    "HF583",
    "image-for-other-hardware",
    Severity.ERROR,
    on=Pod,
    what="An image is built for another processor, or for no NVIDIA GPU, by its own name.",
    why="The program does not start (exec format error), or finds no GPU.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/gpus",
    fix="take the image for CUDA and for the architecture of the nodes",
    base="container",
    bad="""\
image: registry.example/trainer:1.4-cpu
""",
    good="""\
image: registry.example/trainer:1.4-cu126
""",
)
def compare_images(pod: Pod, context: Context) -> Iterator[Hit]:
    arches: set[str] = set()
    for demand in context.place(pod).find_demands("kubernetes.io/arch"):
        arches |= set(demand.values)
    if not arches and _takes_arm(pod, context):
        arches = {"amd64", "arm64"}
    for container in pod.containers:
        image = as_text(container.body.get("image")).partition("@")[0][:500]
        match = _OTHER_DEVICES.search(image)
        if match and container.gpus:
            yield Hit((*container.path, "image"), f"an image for {match[1]}, with a GPU")
        match = _ARCH.search(image)
        # GKE gives a pod that selects no architecture nodes of x86.
        node_arches = arches or {"amd64"}
        image_arch = "arm64" if match and match[1] in _ARM else "amd64"
        if match and image_arch not in node_arches:
            message = f"an image for {image_arch}, on nodes of {', '.join(sorted(node_arches))}"
            yield Hit((*container.path, "image"), message)


def _takes_arm(pod: Pod, context: Context) -> bool:
    """Returns whether a pod tolerates nodes of Arm, or selects machines of Arm."""
    for _, toleration in pod.tolerations:
        if toleration.get("key") == "kubernetes.io/arch":
            return True
    families: set[str] = set()
    for demand in context.place(pod).find_demands(*_MACHINE_LABELS):
        for machine in demand.values:
            family, _, _ = machine.partition("-")
            families.add(family)
    arm_families = set(load_table("machines")["arm_families"])
    return bool(families & arm_families)


_LINKED = """\
ports: [{{containerPort: 8000}}]
image: vllm/vllm-openai:v0.9.2
---
apiVersion: v1
kind: Service
metadata: {{name: {}, namespace: serving}}
spec: {{selector: {{app: server}}, ports: [{{port: 80, targetPort: 8000}}]}}
"""


@rule(
    "HF584",
    "service-sets-a-variable",
    Severity.ERROR,
    on=Object,
    kinds=("Service",),
    what="A Service named vllm gives the pods of its namespace a variable that vLLM reads.",
    why="Kubernetes sets VLLM_PORT=tcp://... in each container, and vLLM ends at its start.",
    source=DOC_LINKS,
    fix="name the Service otherwise, or set enableServiceLinks: false in the pods",
    base="serving-container",
    bad=_LINKED.format("vllm"),
    good=_LINKED.format("chat"),
)
def check_service_names(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.name != "vllm":
        return
    for pod in context.index.select_pods(obj.namespace, {}):
        for container in pod.main_containers:
            is_server = "vllm" in as_text(container.body.get("image")) or container.runs("vllm")
            is_linked = pod.spec.get("enableServiceLinks") is not False
            if is_server and is_linked and "VLLM_PORT" not in container.env:
                message = f"sets VLLM_PORT in {pod.owner.name}: {dig(obj.body, 'kind')} links"
                yield Hit(("metadata", "name"), message)
                return
