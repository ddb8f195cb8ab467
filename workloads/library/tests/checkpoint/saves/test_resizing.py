"""Checks before a gang may continue with another number of nodes."""

from dataclasses import replace

import pytest
import torch

from holdfast.checkpoint import PerRank
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.save import resizing
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
        # Nobody keeps copies for a gang of one node.
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
