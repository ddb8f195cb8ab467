"""HF650 to HF655: GPUs that stay idle, and memory that a program takes beyond its limit."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Pod, as_maps, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.servers import find_server
from holdfast.support.values import GIB, quantity

DOC_VLLM = "https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html"
DOC_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html"
DOC_GPUS = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"
_SPLITS = {
    "vLLM": (
        ("--tensor-parallel-size", "-tp"),
        ("--pipeline-parallel-size", "-pp"),
        ("--data-parallel-size", "-dp"),
    ),
    "SGLang": (
        ("--tp", "--tp-size", "--tensor-parallel-size"),
        ("--dp", "--dp-size", "--data-parallel-size"),
        ("--pp", "--pp-size", "--pipeline-parallel-size"),
    ),
}
_HIDDEN = ("", "-1", "none", "void", "nodevfiles", "NoDevFiles")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_DEVICES = re.compile(r"\d{1,2}(,\d{1,2})*")
_DRIVER_FOLDER = "/usr/local/nvidia/lib64"
_DEBUG = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
    "NCCL_DEBUG": ("TRACE",),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1",),
}
_LINKS_OFF = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s?([kKmMgGtT]?)(?:i?[bB])?")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_JAVA_HEAP = re.compile(r"-Xmx(\d{1,9}[kKmMgG]?)\b")
_NODE_HEAP = re.compile(r"--max[-_]old[-_]space[-_]size=(\d{1,9})\b")
_MEMORY_OPTIONS = ("--maxmemory", "--object-store-memory", "--memory-limit", "--max-memory")
_MEMORY_VARIABLES = ("GOMEMLIMIT", "REDIS_MAXMEMORY", "RAY_OBJECT_STORE_MEMORY")
_SHARED_BUFFERS = re.compile(r"\bshared_buffers=(\d{1,9}\s?[kMGT]?B)")


def _split(*options: str) -> str:
    words = ", ".join(["--model=Qwen/Qwen2.5-7B-Instruct", *options])
    return f"""\
nodeSelector: {{holdfast.dev/pool-class: null, cloud.google.com/gke-accelerator: nvidia-l4}}
volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
containers:
- name: main
  image: vllm/vllm-openai:v0.9.2
  args: [{words}]
  resources:
    limits:
      nvidia.com/gpu: 4
  volumeMounts:
  - name: shm
    mountPath: /dev/shm
"""


@rule(
    "HF650",
    "gpus-left-idle",
    Severity.WARNING,
    on=Pod,
    what="A server of models uses fewer GPUs than its container has, or GPUs are hidden from it.",
    why="The other GPUs are paid for and idle; without one, a program runs on the CPU or ends.",
    source=DOC_VLLM,
    fix="set --tensor-parallel-size to the number of GPUs, or ask for fewer",
    base="serving-pod",
    bad=_split("--tensor-parallel-size=2"),
    good=_split("--tensor-parallel-size=4"),
)
def gpus_left_idle(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if not container.gpus:
            continue
        yield from _check_visible(container)
        splits = _SPLITS.get(find_server(container))
        text = container.script
        if splits is None or "--config" in text or "ray" in text or "headless" in text:
            continue
        if text.count("--port") > 1 or "data-parallel-size-local" in text:
            continue
        count = 1
        for options in splits:
            count *= _get_number(container, options)
        if 0 < count < container.gpus:
            message = f"the server uses {count} of {container.gpus} GPUs"
            yield Hit(container.command_path, message)


def _get_number(container: Container, options: tuple[str, ...]) -> int:
    """Returns the whole number that an option gives; 1 without the option, 0 for no number."""
    for option in options:
        for name in (option, option.replace("-", "_").replace("__", "--", 1)):
            if container.option(name):
                return container.number(name) or 0
    return 1


def _check_visible(container: Container) -> Iterator[Hit]:
    """Yields a variable that hides GPUs from a container that has them."""
    for path, name, value in container.variables:
        if name not in _VISIBLE or container.body.get("command") == []:
            continue
        item = _find_entry(container, name)
        if "valueFrom" in item or "$(" in value:
            continue
        if value in _HIDDEN:
            yield Hit(path, f"{name} hides {container.gpus} GPUs")
        elif _DEVICES.fullmatch(value[:200]):
            count = len(set(value.split(",")))
            if count < container.gpus and name == "CUDA_VISIBLE_DEVICES":
                yield Hit(path, f"{name} shows {count} of {container.gpus} GPUs")


def _find_entry(container: Container, name: str) -> dict[str, object]:
    for entry in as_maps(container.body.get("env")):
        if entry.get("name") == name:
            return entry
    return {}


def _variable(name: str, value: str) -> str:
    return f"env: [{{name: {name}, value: '{value}'}}]"


@rule(
    "HF651",
    "debug-setting-left-on",
    Severity.WARNING,
    on=Pod,
    what="A variable for debugging slows all work on the GPUs of a container.",
    why="Each kernel waits for the one before it, each collective is checked, or links are unused.",
    source=DOC_CUDA,
    fix="remove the variable once the fault is found",
    base="container",
    bad=_variable("CUDA_LAUNCH_BLOCKING", "1"),
    good=_variable("CUDA_LAUNCH_BLOCKING", "0"),
)
def debug_left_on(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        for path, name, value in container.variables:
            if container.gpus and value in _DEBUG.get(name, ()):
                yield Hit(path, f"{name} is {value}")
            elif container.gpus > 1 and name in _LINKS_OFF and value == "1":
                yield Hit(path, f"{name} is 1: {container.gpus} GPUs do not use their links")


@rule(
    "HF652",
    "driver-folder-replaced",
    Severity.WARNING,
    on=Pod,
    what="LD_LIBRARY_PATH of a container with GPUs leaves out the folder of the driver.",
    why="GKE mounts the driver at /usr/local/nvidia/lib64: without it there is no libcuda.so.",
    source=DOC_GPUS,
    fix="add /usr/local/nvidia/lib64 to the list",
    base="container",
    bad=_variable("LD_LIBRARY_PATH", "/opt/app/lib"),
    good=_variable("LD_LIBRARY_PATH", "/opt/app/lib:/usr/local/nvidia/lib64"),
)
def driver_folder_replaced(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        for path, name, value in container.variables:
            is_given = "$" in value or not value
            if name == "LD_LIBRARY_PATH" and container.gpus and not is_given:
                folders = [folder.rstrip("/") for folder in value[:4_000].split(":")]
                if _DRIVER_FOLDER not in folders:
                    yield Hit(path, f"LD_LIBRARY_PATH has no {_DRIVER_FOLDER}")


@rule(
    "HF653",
    "interface-of-no-pod",
    Severity.ERROR,
    on=Pod,
    what="NCCL or Gloo uses a network interface that a pod of GKE does not have.",
    why="Each rank ends at the first collective: no socket interface found.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    fix="eth0, or leave the variable out",
    base="container",
    bad=_variable("NCCL_SOCKET_IFNAME", "ib0"),
    good=_variable("NCCL_SOCKET_IFNAME", "eth0"),
)
def check_interfaces(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.spec.get("hostNetwork") is True:
        return
    for container in pod.containers:
        for path, name, value in container.variables:
            if name not in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
                continue
            for interface in value[:200].split(","):
                if re.match(r"=?(ib|en[opsx]|bond|mlx|wl|docker|hsn)", interface.strip()):
                    yield Hit(path, f"a pod has no interface {interface}")


@rule(
    "HF654",
    "program-larger-than-its-limit",
    Severity.ERROR,
    on=Pod,
    what="A program is allowed more memory than the limit of its container.",
    why="The kernel ends it before it frees or refuses anything: OOMKilled under load.",
    source="https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
    fix="leave a quarter of the limit to the rest of the program",
    base="container",
    bad="""\
command:
- java
- -Xmx16g
- -jar
- app.jar
""",
    good="""\
command:
- java
- -Xmx6g
- -jar
- app.jar
""",
)
def compare_memory(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        limit = quantity(container.limit("memory"))
        if not limit:
            continue
        for path, name, size in _list_sizes(container):
            if size > limit:
                message = f"{name} is {size / GIB:.3g} GiB, with a limit of {limit / GIB:.3g} GiB"
                yield Hit(path, message)


def _list_sizes(container: Container) -> Iterator[tuple[Path, str, float]]:
    """Yields the memory that options and variables allow, each with its path and name."""
    for path, text in container.list_texts():
        for match in _JAVA_HEAP.finditer(text[:4_000]):
            yield path, "-Xmx", _parse_size(match[1])
        for match in _NODE_HEAP.finditer(text[:4_000]):
            yield path, "--max-old-space-size", float(match[1]) * (1 << 20)
        for match in _SHARED_BUFFERS.finditer(text[:4_000]):
            yield path, "shared_buffers", _parse_size(match[1])
    for option in _MEMORY_OPTIONS:
        size = _parse_size(container.option(option))
        if size > 1 << 20:
            yield container.command_path, option, size
    for path, name, value in container.variables:
        if name in _MEMORY_VARIABLES and _parse_size(value) > 1 << 20:
            yield path, name, _parse_size(value)


def _parse_size(text: str) -> float:
    """Returns the bytes of a size as programs write it, 3gb or 512M; 0 for another text."""
    match = _SIZE.fullmatch(text.strip()[:30])
    return float(match[1]) * _UNITS[match[2].lower()] if match else 0.0


@rule(
    "HF655",
    "fewer-cores-than-gpus",
    Severity.WARNING,
    on=Pod,
    what="A container is limited to fewer cores than it has GPUs.",
    why="Each GPU needs a process that feeds it: they take turns, and the GPUs wait.",
    source="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    fix="give each GPU several cores, or leave out the limit of CPU",
    base="container",
    bad="resources: {limits: {cpu: 500m}}",
    good="resources: {limits: {cpu: '6'}}",
)
def fewer_cores_than_gpus(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        cores = quantity(container.limit("cpu"))
        if container.gpus and cores and cores < container.gpus:
            path = (*container.path, "resources", "limits", "cpu")
            yield Hit(path, f"{as_text(str(container.limit('cpu')))} cores, {container.gpus} GPUs")
