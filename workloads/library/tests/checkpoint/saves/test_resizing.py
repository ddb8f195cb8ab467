"""Checks before a gang may continue with another number of nodes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.checkpoint import PerRank
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.save import resizing
from holdfast.checkpoint.state import capture
from holdfast.support.errors import InputError

GIB = 1 << 30
PLACES = PeerPlaces(
    run="job",
    epoch=1,
    place=0,
    keepers=[("127.0.0.1", 1)] * 8,
    ranks_per_node=1,
    memories=(3, 4, 5),
    min_nodes=4,
    max_nodes=8,
)
FIXED = replace(PLACES, min_nodes=8)
ON_DISK = replace(PLACES, memories=(3, 4), folder_bytes=375 * GIB)


@pytest.mark.parametrize(
    ("places", "state_gib", "fix"),
    [
        (PLACES, 48, ""),
        (PLACES, 60, "nodes: 5..8, or `copies_in: disk`"),
        (PLACES, 900, "nodes with 1208.0 GB and more, or `copies_in: disk`"),
        # No neighbor keeps copies for a gang of one node.
        (replace(PLACES, min_nodes=1), 20, ""),
        (
            replace(PLACES, min_nodes=1),
            22,
            "nodes: 2..8, or `copies_in: disk`",
        ),
        # A fixed gang of eight nodes.
        (FIXED, 100, ""),
        (FIXED, 103, "nodes with 69.1 GB and more, or `copies_in: disk`"),
        # Two shards in memory and four on the disk.
        (ON_DISK, 120, ""),
        (ON_DISK, 130, "nodes: 5..8"),
        (replace(ON_DISK, folder_bytes=100 * GIB), 120, "nodes: 5..8"),
        (
            replace(ON_DISK, folder_bytes=0),
            120,
            "nodes with 128.8 GB and more",
        ),
    ],
)
def test_fewest_nodes_hold_the_state_or_the_arithmetic_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    places: PeerPlaces,
    state_gib: int,
    fix: str,
) -> None:
    monkeypatch.setattr(resizing, "memory_limit", lambda: 64 * GIB)
    if not fix:
        resizing.check_memory(state_gib * GIB, places)
        return
    with pytest.raises(InputError) as refused:
        resizing.check_memory(state_gib * GIB, places)
    assert refused.value.fix == fix
    assert "times in each one's " in str(refused.value.got)


def test_per_rank_entries_are_refused() -> None:
    resizing.check_entries(
        {
            "steps": 3,
            "whole": torch.zeros(3),
        }
    )
    with pytest.raises(InputError, match="entry own cannot be divided"):
        resizing.check_entries({"own": PerRank(torch.zeros(3))})


WORLD_SIZE = 8
IN_PAIRS = replace(PLACES, keepers=[("127.0.0.1", 1)] * 4, ranks_per_node=2, max_nodes=4)
"""Four nodes of two ranks."""


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("eight_ranks")
@pytest.mark.parametrize(
    ("mesh", "is_accepted"),
    [
        (torch.arange(8), True),
        (torch.arange(8).view(4, 2), True),
        (torch.arange(8).view(8, 1), True),
        # Tensor parallelism alone, inside a node and over two of them.
        (torch.arange(2), True),
        (torch.arange(0, 4, 2), False),
        # The inner dimension is over two nodes, over all of them, and over a part of the gang.
        (torch.arange(8).view(2, 4), False),
        (torch.arange(8).view(4, 2).T, False),
        (torch.arange(4).view(2, 2), False),
    ],
    ids=lambda value: str(value.tolist()) if isinstance(value, torch.Tensor) else None,
)
def test_meshes_that_cannot_lose_a_node_are_refused_with_sizes_that_can(
    mesh: torch.Tensor, is_accepted: bool
) -> None:
    placements = [Replicate()] * mesh.ndim
    device_mesh = DeviceMesh("cpu", mesh)
    tensor = DTensor.from_local(torch.zeros(2), device_mesh, placements, run_check=False)
    captured = capture({"weight": nn.Parameter(tensor)})
    if is_accepted:
        resizing.check_meshes(captured, IN_PAIRS, WORLD_SIZE)
        return
    with pytest.raises(InputError, match="cannot lose one node") as refused:
        resizing.check_meshes(captured, IN_PAIRS, WORLD_SIZE)
    assert refused.value.allowed.startswith("8 x 1 or 4 x 2 ranks: ")
