"""Tensors as a file of safetensors: a length, a JSON header and raw bytes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.state.tensors import dtype_name, memory_of
from holdfast.contract.errors import InputError

# The format's own names for the dtypes that it has.
DTYPES = {
    **{f"{ours}{bits}": f"{theirs}{bits}" for ours, theirs in (("float", "F"), ("int", "I")) for bits in (64, 32, 16)},
    **{"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"int8": "I8", "uint8": "U8", "bool": "BOOL"},
}


def refuse_existing(out: Path) -> None:
    """Raises InputError."""
    if out.exists():
        what = f"{'folder' if out.is_dir() else 'file'} exists"
        raise InputError(what, got=str(out), allowed="a new name", fix="choose another --out")


def in_one_entry(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors without the name of the entry they were in, as from_pretrained() looks for them. Raises InputError where
    two entries have one name."""
    found = {key.partition("/")[2] or key: tensor for key, tensor in tensors.items()}
    if len(found) < len(tensors):
        raise InputError(
            "two entries hold tensors of one name",
            got=f"{len(tensors)} tensors, {len(found)} names",
            allowed="one entry",
            fix="choose it by --keys model/",
        )
    return found


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str]) -> int:
    """Bytes of its tensors. Create-only: an export must not overwrite what a server reads. Raises InputError for a dtype
    that the format does not have."""
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _dtype(name, tensor), "shape": list(tensor.shape), "data_offsets": [at, at + size]}
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
