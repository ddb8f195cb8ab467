"""Read the index of a folder of torch-checkpointing: its ranks, their files, and what they hold.

The index is a pickle of plain dicts, which is read without a single class. It is there if a save
had a resharder. Source: DistributedMetadata.to_dict() of torch-checkpointing 0.1.1, version 2.0.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.format import Sizes
from holdfast.checkpoint.interchange.index_unpickler import PLAIN, UnpicklingError, read_index
from holdfast.checkpoint.interchange.source import make_source_error
from holdfast.checkpoint.state.sharding import Interval, list_intervals

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

METADATA = "metadata.pkl"
VERSION = "2.0"
TORCH = "TorchSerialization"
SAFETENSORS = "SafetensorsSerialization"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """The division of a tensor among the ranks of a mesh."""

    shape: Sizes
    """Shape of the whole tensor."""
    mesh_shape: Sizes
    ranks: tuple[int, ...]
    """Ranks of the mesh, row-major."""
    placements: "tuple[Placement, ...]"

    def is_replicated(self) -> bool:
        return all(placement.is_replicate() for placement in self.placements)

    def list_intervals(self, rank: int) -> tuple[tuple[Interval, ...], ...]:
        """Return the intervals of each axis that a rank of the mesh holds."""
        position = self.ranks.index(rank)
        coordinate: list[int] = []
        for size in reversed(self.mesh_shape):
            position, index = divmod(position, size)
            coordinate.insert(0, index)
        return list_intervals(self.shape, self.mesh_shape, tuple(coordinate), self.placements)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFile:
    """The file that a rank wrote for an item."""

    name: str
    """Relative to the folder."""
    serialization: str = TORCH


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    world_size: int
    shardings: Mapping[str, list[Sharding]] = field(default_factory=dict)
    """Shardings by the name of the tensor: its item and the path in it, joined by dots."""
    files: Mapping[str, Mapping[int, RankFile]] = field(default_factory=dict)
    """Files by item and rank, where they are not the library's default ones."""


def read_rank_index(path: Path) -> Index:
    """Return the index of a folder that has one. Raises InputError."""
    file = path / METADATA
    try:
        return _parse(read_index(file.read_bytes(), PLAIN))
    except (
        UnpicklingError,
        ValueError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        TypeError,
    ) as error:
        raise make_source_error(file, f"{type(error).__name__}: {error}") from error


def _parse(document: Mapping[str, Any]) -> Index:
    version = document["version"]
    if version != VERSION:
        raise ValueError(f"version {version!r}, and {VERSION} is read")
    shardings: dict[str, list[Sharding]] = {}
    files: dict[str, dict[int, RankFile]] = {}
    for item, metadata in document["metadata"].items():
        for encoded_path, groups in metadata["nested_path_to_metadata"].items():
            name = ".".join(map(str, [item, *json.loads(encoded_path)]))
            if name in shardings:
                raise ValueError(f"two tensors are called {name}")
            shardings[name] = [_parse_sharding(group["sharding_metadata"]) for group in groups]
        files[item] = {}
        for rank, layout in metadata["rank_to_layout_info"].items():
            if layout is not None:
                files[item][int(rank)] = RankFile(
                    name=str(layout["file_path"]),
                    serialization=layout["serialization_format"]["type"],
                )
    return Index(
        world_size=int(document["world_size"]),
        shardings=shardings,
        files=files,
    )


def _parse_sharding(packed: Mapping[str, Any]) -> Sharding:
    kind = packed["type"]
    if kind != "DTensorShardingMetadata":
        raise ValueError(f"a tensor that is sharded by {kind}, and only DTensors are read")
    document = packed["data"]
    mesh = document["mesh_spec"]
    sharding = Sharding(
        shape=_parse_sizes(document["global_shape"]),
        mesh_shape=_parse_sizes(mesh["mesh_shape"]),
        ranks=_parse_sizes(mesh["mesh_data"]),
        placements=tuple(_parse_placement(placement) for placement in document["placements"]),
    )
    if math.prod(sharding.mesh_shape) != len(set(sharding.ranks)) or not sharding.ranks:
        raise ValueError(f"a mesh of shape {sharding.mesh_shape} with ranks {sharding.ranks}")
    if len(sharding.placements) != len(sharding.mesh_shape):
        raise ValueError(f"{len(sharding.placements)} placements on {sharding.mesh_shape}")
    return sharding


def _parse_sizes(numbers: Any) -> Sizes:
    sizes = tuple(numbers)
    if any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError(f"{sizes} are no sizes")
    return sizes


def _parse_placement(document: Mapping[str, Any]) -> "Placement":
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import (
        _StridedShard,  # pyright: ignore[reportPrivateUsage]
    )

    kind = document["type"]
    if kind == "Replicate":
        return Replicate()
    if kind == "Shard":
        return Shard(int(document["dim"]))
    if kind == "StridedShard":
        return _StridedShard(int(document["dim"]), split_factor=int(document["split_factor"]))
    raise ValueError(f"a placement of type {kind}")
