"""Checkpoints for programs of others: one safetensors file, or a folder that from_pretrained() reads."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from holdfast.checkpoint.safetensors import write_folder, write_safetensors
from holdfast.contract.errors import InputError

FORMATS = ("safetensors", "pretrained")
# What stands beside the weights in such a folder. Weights of the example itself must not go along.
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")


def refuse_existing(out: Path) -> None:
    if out.exists():
        raise InputError(
            f"{'folder' if out.is_dir() else 'file'} exists",
            got=str(out),
            allowed="a new name",
            fix="choose another --out",
        )


def export_to(
    to: str, out: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str], *, like: Path | None
) -> int:
    """Bytes of its tensors. In a folder their names lose the entry that they stood in."""
    if to == "safetensors":
        return write_safetensors(out, tensors, notes)
    if like is not None and not (like / "config.json").is_file():
        raise InputError(
            "folder to take the configuration from has none",
            got=str(like),
            allowed="a folder with config.json",
            fix="save one there by model.config.save_pretrained()",
        )
    weights = {key.partition("/")[2] or key: tensor for key, tensor in tensors.items()}
    if len(weights) < len(tensors):
        raise InputError(
            "two entries hold tensors of one name",
            got=f"{len(tensors)} tensors, {len(weights)} names",
            allowed="one entry",
            fix="choose it by --keys model/",
        )
    size = write_folder(out, weights, {"format": "pt", **notes})
    for pattern in _BESIDE if like is not None else ():
        for file in sorted(like.glob(pattern)) if like is not None else ():
            if not file.name.endswith(".index.json"):
                shutil.copy(file, out)
    return size
