"""Checks a model's folder before money is spent: its config.json, and its weights against the GPU.

The numbers are those that vLLM itself needs at its start: the weights, the cache of one request of
the full length, and what is computed in between. Without this check, a model that does not fit
would be refused by vLLM after the machines were bought, and again at every restart.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.clients.gcloud import GcloudFailed, ask
from holdfast.services.file.service_file import ServiceSpec
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.values import GIB
from holdfast.vocabulary.machines import ACCELERATORS

GPU_SHARE = 0.9
"""Share of the GPU's memory that vLLM uses by default."""
ACTIVATIONS_GIB = 1.5
"""Memory of each GPU for what is computed between the layers, and for compiled graphs."""
_ABSENT = ("matched no objects", "not found", "404", "NOT_FOUND")
_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model as its folder describes it."""

    folder: str
    config: Mapping[str, Any]
    weights_bytes: int

    @property
    def longest_context(self) -> int:
        """Tokens of the longest request that the model was made for; 0: it does not say."""
        return _get_count(self._text_config, "max_position_embeddings")

    @property
    def _text_config(self) -> Mapping[str, Any]:
        """The part about text of a model for several media, or all of it."""
        part = self.config.get("text_config")
        return part if isinstance(part, dict) else self.config

    def count_cache_bytes(self, tokens: int) -> int:
        """Return the bytes of keys and values for some tokens; 0 if the config says too little."""
        config = self._text_config
        layers = _get_count(config, "num_hidden_layers")
        heads = _get_count(config, "num_attention_heads")
        kv_heads = _get_count(config, "num_key_value_heads") or heads
        head_size = _get_count(config, "head_dim")
        if not head_size and heads:
            head_size = _get_count(config, "hidden_size") // heads
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
        token_bytes = 2 * layers * kv_heads * head_size * _BYTES.get(dtype, 2)
        return token_bytes * tokens


def _get_count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def check(service: ServiceSpec, project: str, copy: Path | None = None) -> list[str]:
    """Check that the model fits, and return notes.

    `copy` is a copy of the folder on this machine; without it the bucket is read.
    Raises InputError for a folder without config.json or weights, and for a GPU that is too small.
    """
    try:
        model = read_copy(copy) if copy else _read_bucket(service.model, project)
    except Unjudged as error:
        return [f"the model was not checked: {error}"]
    return [require_fit(service, model)]


def read_copy(folder: Path) -> Model:
    """Read a folder on this machine."""
    if not (folder / "config.json").is_file():
        reason = "no config.json" if folder.is_dir() else "no such folder"
        raise InputError(
            "the model cannot be loaded",
            got=f"{folder}: {reason}",
            allowed="a folder with config.json, the tokenizer's files and *.safetensors",
            fix="--model-copy FOLDER, as save_pretrained() wrote it",
        )
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.safetensors")}
    return _make_model(str(folder), sizes, lambda: (folder / "config.json").read_text())


def _read_bucket(url: str, project: str) -> Model:
    """Read a folder of a bucket through the user's gcloud. Raises Unjudged if that fails."""
    folder = url.rstrip("/")
    try:
        rows: Any = ask("storage", "objects", "list", f"{folder}/*", project=project)
    except GcloudFailed as error:
        if any(words in str(error) for words in _ABSENT):
            raise _no_config(folder, "no such folder") from error
        raise
    sizes: dict[str, int] = {}
    for row in rows or ():
        sizes[str(row["name"]).rpartition("/")[2]] = int(row["size"])
    if "config.json" not in sizes:
        raise _no_config(folder, f"{len(sizes)} objects, none of them config.json")
    config: Any = ask("storage", "cat", f"{folder}/config.json", project=project)
    return _make_model(folder, sizes, lambda: json.dumps(config))


def _make_model(folder: str, sizes: Mapping[str, int], read_config: Callable[[], str]) -> Model:
    weights = [size for name, size in sizes.items() if name.endswith(".safetensors")]
    if not weights:
        raise InputError(
            "the model has no weights",
            got=f"{folder}: no *.safetensors",
            allowed="a folder with config.json, the tokenizer's files and *.safetensors",
            fix="copy it as save_pretrained() wrote it",
        )
    try:
        config: Any = json.loads(read_config())
    except ValueError as error:
        raise _no_config(folder, f"config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise _no_config(folder, "config.json is no object")
    return Model(folder=folder, config=config, weights_bytes=sum(weights))


def _no_config(folder: str, got: str) -> InputError:
    return InputError(
        "the model cannot be loaded",
        got=f"{folder}: {got}",
        allowed="a folder with config.json, the tokenizer's files and *.safetensors",
        fix="gcloud storage cp -r FOLDER gs://BUCKET/, as save_pretrained() wrote it",
    )


def require_fit(service: ServiceSpec, model: Model) -> str:
    """Return the arithmetic in one sentence. Raises InputError if the GPUs are too small."""
    gpu_gib = ACCELERATORS[service.accelerator].memory_gib
    room_gib = service.gpu_count * (GPU_SHARE * gpu_gib - ACTIVATIONS_GIB)
    weights_gib = model.weights_bytes / GIB
    tokens = service.context or model.longest_context
    cache_gib = model.count_cache_bytes(tokens) / GIB
    usable = (
        f"{service.gpu_count} x ({GPU_SHARE:g} x {gpu_gib} GiB - {ACTIVATIONS_GIB:g} GiB) ="
        f" {room_gib:.1f} GiB"
    )
    needed = (
        f"{weights_gib:.1f} GiB of weights + {cache_gib:.1f} GiB of cache for one request of"
        f" {tokens:,} tokens = {weights_gib + cache_gib:.1f} GiB"
    )
    if weights_gib + cache_gib <= room_gib:
        return f"the model fits: {needed}, of {usable}"
    per_token = model.count_cache_bytes(1)
    spare_bytes = (room_gib - weights_gib) * GIB
    fix = "take a GPU with more memory, or more GPUs for each replica"
    if per_token and spare_bytes > per_token * 1024:
        fix = f"--set context={int(spare_bytes / per_token) // 1024 * 1024}, or {fix}"
    raise InputError(
        "the GPU is too small for the model",
        got=f"{service.gpu}: {needed}",
        allowed=f"at most {usable}",
        fix=fix,
    )
