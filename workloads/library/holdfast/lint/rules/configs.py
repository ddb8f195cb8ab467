"""HF690 to HF694: files of settings in ConfigMaps against the pods that mount them."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from holdfast.lint.document import BoundedLoader, Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, is_below, outlives_pod
from holdfast.lint.objects import Container, Object, Pod, as_int, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.identity import ISSUED_SECRET
from holdfast.lint.rules.targets import judge_text

DOC_CONFIG = "https://kubernetes.io/docs/concepts/configuration/configmap/"
DOC_DEEPSPEED = "https://www.deepspeed.ai/docs/config-json/"
_LONGEST = 60_000
_TEMPLATE = re.compile(r"\{\{|\{%|\$\{|<%|__[A-Z_]+__|@@")
_CHECKPOINT_KEY = re.compile(
    r"(check_?points?|ckpts?)(_?(dir|directory|path|folder|root))?"
    r"|(output|save|runs?)_?(dir|directory|path|folder|root)"
)
_FOLDER_KEY = re.compile(r"(dir|directory|path|folder|root)")
_PARENT_KEY = re.compile(r"(check_?points?(ing|er)?|ckpts?)")
_DEEPEST = 6
_MOST_VALUES = 2_000


def _config(text: str, name: str = "ds.json") -> str:
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata: {{name: train, namespace: training}}
data:
  {name}: |
    {text}
"""


@rule(
    "HF690",
    "settings-not-parsed",
    Severity.ERROR,
    on=Object,
    kinds=("ConfigMap",),
    what="A file of a ConfigMap is no JSON or YAML, and its name says that it is.",
    why="The program that reads it ends at its start.",
    source=DOC_CONFIG,
    fix="correct the text: commas between all fields of JSON, and none after the last",
    bad=_config('{"train_batch_size": 64 "bf16": {"enabled": true}}'),
    good=_config('{"train_batch_size": 64, "bf16": {"enabled": true}}'),
)
def settings_not_parsed(obj: Object, context: Context) -> Iterator[Hit]:
    for name, text in as_map(obj.body.get("data")).items():
        if not isinstance(text, str) or _TEMPLATE.search(text[:_LONGEST]) or len(text) > _LONGEST:
            continue
        fault = _find_fault(str(name), text)
        if fault:
            yield Hit(("data", name), fault, on_key=True)


def _find_fault(name: str, text: str) -> str:
    if name.endswith(".json") and text.strip():
        # Some tools read comments in JSON.
        if re.search(r"^\s*//|/\*", text, re.MULTILINE):
            return ""
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"no JSON: {str(error)[:100]}"
    if name.endswith((".yaml", ".yml")):
        try:
            for _ in yaml.parse(text, Loader=yaml.CSafeLoader):
                pass
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark else ""
            return f"no YAML{line}: {str(getattr(error, 'problem', error))[:100]}"
    return ""


@lru_cache(maxsize=256)
def _load(name: str, text: str) -> Any:
    """Returns the values of a file of settings; None where it is none, or is a template.

    Callers only read the values: several pods and rules share them.
    """
    if _TEMPLATE.search(text[:_LONGEST]) or len(text) > _LONGEST or "&" in text:
        return None
    try:
        if name.endswith(".json"):
            return json.loads(text)
        if name.endswith((".yaml", ".yml")):
            # PyYAML's own loader recurses in C: deep brackets end the process.
            return yaml.load(text, Loader=BoundedLoader)
    # PyYAML raises what a tag's own code does: `!!int ""` an IndexError, `!!bool maybe` a KeyError.
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
        yaml.YAMLError,
    ):
        return None
    return None


def _list_files(
    pod: Pod, container: Container, context: Context
) -> Iterator[tuple[Object, str, Any]]:
    """Yields each file of settings that a container mounts: its ConfigMap, name and values."""
    names = {as_text(mount.get("name")) for _, mount in container.mounts}
    for _, volume in pod.volumes:
        name = as_text(dig(volume, "configMap", "name"))
        if as_text(volume.get("name")) not in names or not name:
            continue
        config = context.index.find("ConfigMap", name, pod.owner.namespace)
        for key, text in as_map(config.body.get("data")).items() if config else ():
            values = _load(str(key), text) if isinstance(text, str) else None
            if config and values is not None:
                yield config, str(key), values


def _batch(total: int) -> str:
    return f"""\
spec:
  template:
    spec:
      volumes: [{{name: config, configMap: {{name: ds}}}}]
      containers:
      - name: main
        image: registry.example/trainer:1.4
        command: [python, train.py, --deepspeed, /etc/train/ds.json]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts: [{{name: config, mountPath: /etc/train}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: ds, namespace: training}}
data:
  ds.json: |
    {{"train_batch_size": {total}, "train_micro_batch_size_per_gpu": 4,
     "gradient_accumulation_steps": 2}}
"""


@rule(
    "HF691",
    "batch-is-not-the-product",
    Severity.ERROR,
    on=Pod,
    what="Settings of DeepSpeed or Accelerate are for another number of processes than the pods.",
    why="DeepSpeed ends at its start unless the batch is micro batch x steps x ranks.",
    source=DOC_DEEPSPEED,
    fix="leave out one of the three sizes, or correct the product",
    base="job",
    bad=_batch(64),
    good=_batch(16),
)
def batch_is_not_the_product(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        ranks = container.gpus * max(1, pod.replicas)
        is_gang = pod.job is not None and container.gpus > 0
        if not is_gang:
            continue
        for config, name, values in _list_files(pod, container, context):
            if config.file != pod.owner.file or not isinstance(values, dict):
                continue
            total = as_int(values.get("train_batch_size"))
            micro = as_int(values.get("train_micro_batch_size_per_gpu"))
            steps = as_int(values.get("gradient_accumulation_steps"))
            if total and micro and steps and total != micro * steps * ranks:
                product = f"{micro} x {steps} x {ranks} ranks is {micro * steps * ranks}"
                message = f"train_batch_size of {name} is {total}; {product}"
                yield Hit((*container.path, "volumeMounts"), message)
            processes = as_int(values.get("num_processes"))
            is_accelerate = "distributed_type" in values or "compute_environment" in values
            if is_accelerate and processes and processes != ranks:
                message = f"num_processes of {name} is {processes}, and there are {ranks} GPUs"
                yield Hit((*container.path, "volumeMounts"), message)


def _settings(folder: str) -> str:
    return f"""\
spec:
  template:
    spec:
      volumes:
      - {{name: config, configMap: {{name: train}}}}
      - {{name: runs, persistentVolumeClaim: {{claimName: runs}}}}
      containers:
      - name: main
        image: registry.example/trainer:1.4
        command: [python, train.py, --config, /etc/train/train.yaml]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts:
        - {{name: config, mountPath: /etc/train}}
        - {{name: runs, mountPath: /runs}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: train, namespace: training}}
data:
  train.yaml: |
    checkpoint_dir: {folder}
"""


@rule(
    "HF692",
    "settings-write-elsewhere",
    Severity.ERROR,
    on=Pod,
    what="A file of settings names a folder for checkpoints or results that is on no kept volume.",
    why="They are written to the container's own disk, and are lost with the pod.",
    source=DOC_CONFIG,
    fix="name a folder of the volume that the pod mounts for them",
    base="job",
    bad=_settings("/run/a7"),
    good=_settings("/runs/a7"),
)
def settings_write_elsewhere(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.job is None:
        return
    for container in pod.main_containers:
        kept_mounts = [mount for _, mount in container.mounts if outlives_pod(container, mount)]
        writable = [mount for mount in kept_mounts if mount.get("readOnly") is not True]
        for _, name, values in _list_files(pod, container, context) if writable else ():
            for key, folder in _list_folders(values, (), [_MOST_VALUES]):
                mount = find_mount(container, folder)
                is_kept = mount is not None and mount in kept_mounts
                if not is_kept and not _is_above(folder, kept_mounts):
                    message = f"{key} of {name} is {folder}, which is on no kept volume"
                    yield Hit((*container.path, "volumeMounts"), message)


def _is_above(folder: str, mounts: list[dict[str, Any]]) -> bool:
    """Returns whether a folder holds one of these mounts."""
    return any(is_below(as_text(mount.get("mountPath")), folder) for mount in mounts)


def _list_folders(value: Any, path: Path, budget: list[int]) -> Iterator[tuple[str, str]]:
    """Yields the names and paths of folders for checkpoints and results in settings."""
    if len(path) > _DEEPEST or not isinstance(value, dict):
        return
    for key, child in value.items():
        budget[0] -= 1
        if budget[0] < 0:
            return
        word = str(key).lower().replace("-", "_")[:100]
        parent = str(path[-1]).lower() if path else ""
        is_named = _CHECKPOINT_KEY.fullmatch(word)
        is_inside = _PARENT_KEY.fullmatch(parent) and _FOLDER_KEY.fullmatch(word)
        if isinstance(child, str) and child.startswith("/") and (is_named or is_inside):
            yield ".".join(map(str, (*path, key))), child.rstrip("/")
        yield from _list_folders(child, (*path, str(key)), budget)


@rule(
    "HF693",
    "secret-in-config",
    Severity.ERROR,
    on=Object,
    kinds=("ConfigMap",),
    what="A ConfigMap holds a token or a private key.",
    why="Everybody who may read ConfigMaps may read it, and it is in git.",
    source="https://kubernetes.io/docs/concepts/configuration/secret/",
    fix="put it into a Secret, or into Secret Manager",
    bad=_config("token: hf_" + "AbCdEfGhIjKlMnOpQrStUvWx", "settings.yaml"),
    good=_config("token_file: /secrets/token", "settings.yaml"),
)
def secret_in_config(obj: Object, context: Context) -> Iterator[Hit]:
    for name, text in as_map(obj.body.get("data")).items():
        if isinstance(text, str) and ISSUED_SECRET.search(text[:_LONGEST]):
            yield Hit(("data", name), f"{name} holds a literal secret", on_key=True)


def _upstream(url: str) -> str:
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: router
  namespace: research
data:
  settings.yaml: 'upstream: {url}'
---
apiVersion: v1
kind: Service
metadata:
  name: chat
  namespace: research
spec:
  selector:
    app: chat
  ports:
    - port: 8000
"""


@rule(
    "HF694",
    "settings-name-no-service",
    Severity.ERROR,
    on=Object,
    kinds=("ConfigMap",),
    what="An address in a file of settings names a Service of the files wrongly.",
    why="The name does not resolve, or nothing listens on the port.",
    source="https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/",
    fix="write NAME.NAMESPACE and a port of the Service",
    bad=_upstream("http://chat/v1"),
    good=_upstream("http://chat:8000/v1"),
)
def settings_name_no_service(obj: Object, context: Context) -> Iterator[Hit]:
    if not context.index.by_kind.get("Service"):
        return
    for name, text in as_map(obj.body.get("data")).items():
        if isinstance(text, str):
            reason = judge_text(text[:_LONGEST], obj.namespace, obj.file, context)
            if reason:
                yield Hit(("data", name), reason, on_key=True)
