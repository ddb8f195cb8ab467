"""Checks of a state before a gang may continue with another number of nodes."""

from collections.abc import Mapping
from typing import Any

import torch

from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.peers.rooms import memory_limit
from holdfast.checkpoint.peers.slots import SLOTS
from holdfast.checkpoint.state import Captured, PerRank
from holdfast.checkpoint.state.tensors import as_dtensor
from holdfast.support.errors import InputError


def check_entries(state: Mapping[str, Any]) -> None:
    """Raises InputError for an entry that fits one number of ranks only."""
    for name, entry in state.items():
        if isinstance(entry, PerRank):
            raise _make_entry_error(name, "an entry marked PerRank")
        if isinstance(entry, torch.optim.Optimizer):
            _check_optimizer(name, entry)


def _check_optimizer(name: str, optimizer: torch.optim.Optimizer) -> None:
    for parameter, values in optimizer.state.items():
        if as_dtensor(parameter) is None:
            continue
        for key, value in values.items():
            is_plain = isinstance(value, torch.Tensor) and as_dtensor(value) is None
            if is_plain and value.numel() > 1:
                shape = list(value.shape)
                reason = f"{key} of {type(optimizer).__name__} is a plain tensor of {shape}"
                raise _make_entry_error(name, f"{reason}, and its parameter is a DTensor")


def _make_entry_error(name: str, got: str) -> InputError:
    return InputError(
        f"entry {name} cannot be divided over another number of nodes",
        got=got,
        allowed="whole values and DTensors, such as the moments of torch.optim.AdamW under FSDP2",
        fix="create values by torch.zeros_like(parameter); or a fixed number of nodes, `nodes: 8`",
    )


def check_meshes(captured: Captured, places: PeerPlaces, world_size: int) -> None:
    """Raises InputError for a tensor whose mesh cannot lose one node."""
    size = places.ranks_per_node
    for key, tensor in captured.tensors.items():
        sharded = as_dtensor(tensor)
        if sharded is None:
            continue
        mesh = sharded.device_mesh
        ranks = mesh.mesh.flatten(1) if mesh.ndim > 1 else mesh.mesh.unsqueeze(1)
        nodes = ranks // size
        if len(nodes.unique()) == 1 and mesh.size() < world_size:
            continue  # inside a node, such as tensor parallelism alone
        is_inside = all(len(block.unique()) == 1 for block in nodes)
        if is_inside and mesh.size() == world_size:
            continue
        shape = " x ".join(map(str, mesh.shape))
        inner_sizes = [inner for inner in range(1, size + 1) if size % inner == 0]
        shapes = [f"{world_size // inner} x {inner}" for inner in inner_sizes]
        raise InputError(
            "the mesh of a tensor cannot lose one node",
            got=f"{key} on a mesh of {shape} ranks; {size} ranks on each node",
            allowed=(
                f"{' or '.join(shapes)} ranks: a first dimension over all nodes, and the others"
                " inside a node"
            ),
            fix="put tensor parallelism and shards of a replica inside a node; or fix `nodes`",
        )


def check_memory(total_bytes: int, places: PeerPlaces) -> None:
    """Raises InputError, with the arithmetic, if the fewest nodes cannot hold the state and its
    copies.
    """
    memories = len(places.memories)
    limit = memory_limit()
    if not places.spools:
        _require_room(total_bytes, places, staged=memories, room=limit, name="memory")
        return
    _require_room(total_bytes, places, staged=memories, copies=0, room=limit, name="memory")
    name = "folder for copies"
    _require_room(total_bytes, places, staged=SLOTS, room=places.folder_bytes, name=name)


def _require_room(
    total_bytes: int,
    places: PeerPlaces,
    *,
    staged: int,
    copies: int = SLOTS,
    room: int,
    name: str,
) -> None:
    """Raises InputError unless each of the fewest nodes has room for `staged` times its share of
    the state, and for `copies` times that of a neighbor.
    """
    fewest = places.min_nodes or len(places.keepers)
    # The copies of a gang of one node have no neighbor.
    count = staged + copies if fewest > 1 else staged
    needed = count * -(-total_bytes // fewest)
    if needed <= room:
        return
    enough = -(-total_bytes * (staged + copies) // max(1, room))
    if enough <= places.max_nodes:
        fix = f"nodes: {enough}..{places.max_nodes}"
    else:
        fix = f"nodes with {needed / 1e9:.1f} GB and more"
    if not places.spools:
        fix += ", or `copies_in: disk`"
    raise InputError(
        "the fewest nodes of the gang cannot hold its state",
        got=(
            f"{total_bytes / 1e9:.2f} GB over {fewest} nodes, {count} times in each one's {name}:"
            f" {needed / 1e9:.2f} GB of {room / 1e9:.2f} GB"
        ),
        allowed="room for the staged state and a neighbor's copies on every node",
        fix=fix,
    )
