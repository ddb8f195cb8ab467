"""HF487 to HF489: files and models that a program starts with, and what ends a JobSet."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.accessors import list_names
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Object, Pod, as_int, as_list, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity


def _script(mode: str) -> str:
    return f"""\
volumes: [{{name: scripts, configMap: {{name: scripts, defaultMode: {mode}}}}}]
containers:
- name: main
  image: train
  command: [/scripts/run.sh]
  resources: {{limits: {{nvidia.com/gpu: 1}}}}
  volumeMounts: [{{name: scripts, mountPath: /scripts}}]
"""


@rule(
    "HF487",
    "script-not-executable",
    Severity.ERROR,
    on=Pod,
    what=(
        "The command is a file of a ConfigMap or Secret that is mounted without the right to run,"
        " or has no #! line."
    ),
    why="The container does not start: permission denied, and each retry ends in the same way.",
    source="https://kubernetes.io/docs/concepts/storage/volumes/#configmap",
    fix="defaultMode: 0755, or run it by a shell: [bash, /scripts/run.sh]",
    base="job-pod",
    bad=_script("0644"),
    good=_script("0755"),
)
def script_not_executable(pod: Pod, context: Context) -> Iterator[Hit]:
    modes: dict[str, int] = {}
    for _, volume in pod.volumes:
        for field in ("configMap", "secret", "projected"):
            source = volume.get(field)
            if isinstance(source, dict) and not source.get("items"):
                mode = as_int(source.get("defaultMode"))
                modes[as_text(volume.get("name"))] = 0o644 if mode is None else mode
    for container in pod.containers:
        program = next(iter(container.words), "")
        for _, mount in container.mounts:
            place = as_text(mount.get("mountPath")).rstrip("/")
            mode = modes.get(as_text(mount.get("name")))
            if not place or not program.startswith(f"{place}/") or mode is None:
                continue
            if not mode & 0o111:
                yield Hit(container.command_path, f"{program} has the mode {mode:04o}")
            text = _find_script(pod, as_text(mount.get("name")), program, context)
            if text and not text.startswith("#!"):
                yield Hit(container.command_path, f"{program} does not begin with #!")


def _find_script(pod: Pod, volume_name: str, program: str, context: Context) -> str:
    """Returns the text of a program in a ConfigMap; empty where the files do not have it."""
    for _, volume in pod.volumes:
        name = as_text(dig(volume, "configMap", "name"))
        if name and volume.get("name") == volume_name:
            table = context.index.find("ConfigMap", name, pod.owner.namespace)
            key = program.rpartition("/")[2]
            return as_text(dig(table.body, "data", key)) if table else ""
    return ""


@rule(
    "HF488",
    "one-success-ends-all",
    Severity.WARNING,
    on=Object,
    kinds=("JobSet",),
    what="A JobSet of several Jobs is complete when any one of them has finished.",
    why="The others are ended with their work unfinished, and the JobSet counts as a success.",
    source="https://jobset.sigs.k8s.io/docs/concepts/",
    fix="operator: All, or name only the Job that leads the others",
    base="jobset",
    bad="""\
spec:
  successPolicy: {operator: Any, targetReplicatedJobs: [workers]}
  replicatedJobs:
  - name: workers
    replicas: 4
    template: {spec: {template: {spec: {containers: [{name: main, image: train}]}}}}
""",
    good="spec: {successPolicy: {operator: All, targetReplicatedJobs: [workers]}}",
)
def one_success_ends_all(obj: Object, context: Context) -> Iterator[Hit]:
    if dig(obj.spec, "successPolicy", "operator") != "Any":
        return
    targets = as_list(dig(obj.spec, "successPolicy", "targetReplicatedJobs"))
    count = 0
    for job in as_maps(obj.spec.get("replicatedJobs")):
        if not targets or job.get("name") in targets:
            replicas = as_int(job.get("replicas"))
            count += 1 if replicas is None else replicas
    path = ("spec", "successPolicy", "operator")
    if count > 1:
        yield Hit(path, f"one of {count} Jobs ends the others")
        return
    names = list_names(obj.spec.get("replicatedJobs"))
    leaders = [name for name in names if _LEADER.search(name) and name not in targets]
    if targets and leaders:
        yield Hit(path, f"the end of {', '.join(map(str, targets))} ends {leaders[0]} too")


_LEADER = re.compile(r"learner|leader|master|driver|coordinator|trainer|head|launcher")
_PARAMETERS = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,2})?)[bB](?![\w])")
_SMALL_WEIGHTS = re.compile(
    r"awq|gptq|int4|int8|[48]-?bit|fp[468]|nf4|gguf|bnb|w[48]a|quant|gpt-oss|\bq[2-8]_|hqq|aqlm"
    r"|exl[23]|mlx",
    re.IGNORECASE,
)
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HUGGINGFACE_HUB_CACHE")
_MODEL_OPTIONS = ("--model", "--model-path", "--model-id", "--pretrained_model_name_or_path")
_BYTES = 2
_EIGHT_BITS = re.compile(r"fp8|int8|8-?bit|w8a", re.IGNORECASE)


def _write_cache(size: str) -> str:
    return f"""\
volumes: [{{name: hf, emptyDir: {{sizeLimit: {size}}}}}]
containers:
- name: main
  image: vllm
  args: [--model=Qwen/Qwen2.5-7B-Instruct]
  env: [{{name: HF_HOME, value: /hf}}]
  resources: {{limits: {{nvidia.com/gpu: 1}}}}
  volumeMounts: [{{name: hf, mountPath: /hf}}]
"""


@rule(
    "HF489",
    "model-larger-than-its-cache",
    Severity.ERROR,
    on=Pod,
    what="The weights of a model do not fit into the cache, or nothing may download them.",
    why="The pod is evicted in each download, or ends without weights, and starts again on a GPU.",
    source="https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
    fix="two bytes for each parameter, and no HF_HUB_OFFLINE with an empty cache",
    base="serving-pod",
    bad=_write_cache("5Gi"),
    good=_write_cache("40Gi"),
)
def model_larger_than_its_cache(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        folder = _find_cache(container, pod)
        if folder is None:
            continue
        offline = any(
            str(container.env.get(name)).lower() in ("1", "true", "yes", "on")
            for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        )
        if offline and not _is_filled(pod, as_text(folder.get("name"))):
            message = "offline, and its cache begins empty in each pod"
            path = (*container.path, "env")
            fix = "remove HF_HUB_OFFLINE, or mount the weights"
            yield Hit(path, message, fix=fix)
        yield from _check_room(container, folder)


def _check_room(container: Container, folder: dict[str, Any]) -> Iterator[Hit]:
    """Yields a model that is larger than the folder of downloads, or than its part of the disk."""
    rooms = {"cache": ("sizeLimit", quantity(dig(folder, "emptyDir", "sizeLimit")))}
    if dig(folder, "emptyDir", "medium") != "Memory":
        disk = quantity(container.limit("ephemeral-storage"))
        rooms["disk"] = ("ephemeral-storage", disk)
    weights = _find_download(container)
    for name, (field, size) in rooms.items():
        if size is not None and weights > size:
            message = f"about {weights / 1e9:.0f} GB of weights, and {size / 1e9:.0f} GB of {name}"
            fix = f"{field}: two bytes for each parameter, one of FP8, half of 4 bits"
            yield Hit((*container.path, "env"), message, fix=fix)
            return


def _find_download(container: Container) -> float:
    """Returns the least size of a hub's model in bytes, by its name; 0 if the name has no size."""
    model = find_model(container)
    match = _PARAMETERS.search(model[:300].replace("-", " ").replace("_", " "))
    if match is None or "/" not in model or model.startswith("/"):
        return 0.0
    parameter_bytes = float(_BYTES)
    if _SMALL_WEIGHTS.search(model):
        parameter_bytes = 1.0 if _EIGHT_BITS.search(model) else 0.5
    return float(match[1]) * 1e9 * parameter_bytes


def _find_cache(container: Container, pod: Pod) -> dict[str, Any] | None:
    """Returns the volume that holds the folder of downloads, if it is an emptyDir; else None."""
    folders = [as_text(container.env.get(name)) for name in _CACHES]
    for _, mount in container.mounts:
        place = as_text(mount.get("mountPath")).rstrip("/")
        if not place or not any(f"{folder}/".startswith(f"{place}/") for folder in folders):
            continue
        for _, volume in pod.volumes:
            if volume.get("name") == mount.get("name") and isinstance(volume.get("emptyDir"), dict):
                return volume
    return None


def _is_filled(pod: Pod, name: str) -> bool:
    """Returns whether another container mounts the folder, and may fill it."""
    mounts = 0
    for container in pod.containers:
        mounts += any(mount.get("name") == name for _, mount in container.mounts)
    return mounts > 1


def find_model(container: Container) -> str:
    """Returns the model that a command names; empty where it names none."""
    for option in _MODEL_OPTIONS:
        if container.option(option):
            return container.option(option)
    words = container.words
    for program, verb, model in zip(words, words[1:], words[2:], strict=False):
        is_server = program == "vllm" and verb == "serve"
        if is_server and not model.startswith("-"):
            return model
    return ""


def find_size(container: Container) -> float:
    """Returns the bytes of a model, of a hub or a folder, by the parameters in its name."""
    model = find_model(container)
    match = _PARAMETERS.search(model[:300].replace("-", " ").replace("_", " "))
    quantization = container.option("--quantization") or container.option("-q")
    if match is None or quantization or _SMALL_WEIGHTS.search(model):
        return 0.0
    return float(match[1]) * 1e9 * _BYTES
