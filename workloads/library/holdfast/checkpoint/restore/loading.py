"""Weights for fine-tuning and serving, as tensors by name, and as a file of safetensors.

Only reads checkpoints: no run is taken, and no process is started.
"""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format.commit import committed_steps, runs, steps_of
from holdfast.checkpoint.restore.reading import Opened, Transfer, empty_like_saved, open_step, plan
from holdfast.checkpoint.settings import Tuning, checked_url
from holdfast.checkpoint.state.tensors import dtype_name, memory_of
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.stores.storage import Storage
from holdfast.support.errors import InputError

# A person waits for the answer: no five minutes, as a trainer has for its store.
FOR_PEOPLE = Tuning(retry_s=60.0)

# The format's own names for the dtypes that it has.
DTYPES = {
    **{
        f"{ours}{bits}": f"{theirs}{bits}"
        for ours, theirs in (("float", "F"), ("int", "I"))
        for bits in (64, 32, 16)
    },
    **{
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
    },
    **{
        "int8": "I8",
        "uint8": "U8",
        "bool": "BOOL",
    },
}


def load_tensors(
    url: str | os.PathLike[str],
    run: str | None = None,
    keys: Collection[str] | None = None,
    *,
    step: int | None = None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """The newest checkpoint that verifies, as whole tensors by key, without a process group.

    `run` None means the only run there is. `keys` picks tensors; one that ends in '/' picks all
    below it. Raises InputError where nothing verifies, StorageError where the store refuses.
    """
    url = checked_url(url)
    storage = reliable_storage(url, FOR_PEOPLE)
    run = run or only_run(storage)
    reasons: list[str] = []
    # One process alone, so damage is its own to pass over: no other rank could be left at another
    # step.
    for found in steps_of(step, committed_steps(storage, run), run):
        try:
            return found, read_whole(storage, open_step(storage, run, found), keys)
        except Damaged as error:
            reasons.append(f"step {found}: {error}")
    raise InputError(
        f"run {run} has no checkpoint that verifies",
        got="; ".join(reasons)[:400] or "no commit",
        allowed="a run with a committed checkpoint",
        fix=f"look with: python -m holdfast checkpoints list {url}",
    )


def read_whole(
    storage: Storage, opened: Opened, keys: Collection[str] | None
) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, sources in opened.sources.items():
        if keys is None or key in keys or any(k.endswith("/") and key.startswith(k) for k in keys):
            found[key] = empty_like_saved(sources[0].part)
    Transfer(storage, opened, parallel=4).run(plan(opened, found, rank=0))
    return found


def only_run(storage: Storage) -> str:
    """Raises InputError where there is none or more than one."""
    found = [run for run in runs(storage) if committed_steps(storage, run)]
    if len(found) == 1:
        return found[0]
    raise InputError(
        "it is unclear which run's checkpoint to read",
        got=", ".join(found) or "no run with a committed checkpoint",
        allowed="one run, or its name",
        fix="name the run",
    )


def no_such_keys(keys: str, storage: Storage, run: str | None, step: int) -> InputError:
    opened = open_step(storage, run or only_run(storage), step)
    # Random streams are no weights, and a tensor that is an entry has no tensors below it.
    entries = sorted(
        {
            key.split("/")[0] + "/" * ("/" in key)
            for key in opened.sources
            if not key.startswith("__")
        }
    )
    return InputError(
        "no tensor has such a key",
        got=f"--keys {keys}",
        allowed=", ".join(entries) or "none: it has no tensors",
        fix=f"--keys {next(iter(entries), 'KEY')}",
    )


def refuse_existing(out: Path) -> None:
    """Raises InputError."""
    if out.exists():
        raise InputError(
            "output exists",
            got=str(out),
            allowed="a new name",
            fix="choose another --out",
        )


def in_one_entry(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors without the name of the entry they were in, as from_pretrained() looks for them.
    Raises InputError where two entries have one name.
    """
    found = {key.partition("/")[2] or key: tensor for key, tensor in tensors.items()}
    if len(found) < len(tensors):
        raise InputError(
            "two entries hold tensors of one name",
            got=f"{len(tensors)} tensors, {len(found)} names",
            allowed="one entry",
            fix="choose it by --keys model/",
        )
    return found


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str]
) -> int:
    """Bytes of its tensors. Create-only: an export must not overwrite what a server reads. Raises
    InputError for a dtype that the format does not have.
    """
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _dtype(name, tensor),
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The format asks for tensors that begin at multiples of eight, and readers map them.
    encoded += b" " * (-len(encoded) % 8)
    with path.open("xb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(memory_of(tensor.contiguous()))
    return at


def _dtype(name: str, tensor: torch.Tensor) -> str:
    found = DTYPES.get(dtype_name(tensor.dtype))
    if found is None:
        raise InputError(
            f"tensor {name} has a dtype that safetensors does not have",
            got=dtype_name(tensor.dtype),
            allowed=", ".join(DTYPES),
            fix="export other tensors with --keys",
        )
    return found
