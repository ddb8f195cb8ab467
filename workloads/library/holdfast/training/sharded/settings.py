"""Settings of a sharded gang's node."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.support.distribution import DISTRIBUTION, find_version
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.training.gang.member_addresses import MAX_RANKS, Address
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedNode:
    """Settings of a sharded gang and the number of this node."""

    command: Sequence[str]
    checkpoints: str
    """URL of the run's checkpoints, where the gang's epochs are too."""
    run: str
    nodes: tuple[Address, ...]
    """Address of every node; the port above is used too."""
    place: int
    """Number of this node."""
    processes: int
    """Number of processes of each node."""
    min_nodes: int = 0
    """Fewest nodes with which the gang continues; 0: it needs all of them."""
    copies: int = 1
    """Number of copies of each shard in another node's memory: 0 or 1."""
    copies_folder: Path | None = None
    """Folder on a local disk for copies; None: they are in memory."""
    wait_s: float = 1800.0
    """Seconds that the gang waits for a lost node before it releases its nodes."""
    window_s: float = DEFAULT_WINDOW.pod_s

    def __post_init__(self) -> None:
        between(
            "processes of a node",
            self.processes,
            1,
            MAX_RANKS,
        )
        between(
            "seconds to wait for a lost node",
            self.wait_s,
            0,
            7 * 86_400,
        )
        between(
            "node number is out of range",
            self.place,
            0,
            len(self.nodes) - 1,
        )
        between(
            "copies of each shard",
            self.copies,
            0,
            min(1, len(self.nodes) - 1),
            fix="--copies 0, or --nodes 2 and more: a copy is on another node",
        )
        between(
            "fewest nodes of the sharded gang",
            self.fewest,
            1,
            len(self.nodes),
        )
        if self.resizes and not self.copies:
            raise InputError(
                "a gang that continues with fewer nodes needs copies of its shards",
                got=f"{self.min_nodes} to {len(self.nodes)} nodes and --copies 0",
                allowed="--copies 1: the others take the shards of a lost node from its neighbor",
                fix="leave --copies out, or leave --min-nodes out",
            )

    @property
    def fewest(self) -> int:
        """Number of nodes below which the gang waits."""
        return self.min_nodes or len(self.nodes)

    @property
    def resizes(self) -> bool:
        """True if the gang continues with fewer nodes than it may have."""
        return self.fewest < len(self.nodes)

    def describe_shape(self) -> str:
        """Describes what must be the same on every node."""
        count = f"{self.min_nodes}..{len(self.nodes)}" if self.resizes else f"{len(self.nodes)}"
        return f"{count} nodes of {self.processes} processes"


def describe_versions() -> str:
    """Describes the libraries that divide and restore the state."""
    own_version = find_version() or "from a clone"
    return f"torch {torch.__version__}, {DISTRIBUTION} {own_version}"


def check_shapes(
    node: ShardedNode,
    shown: Mapping[str, Any],
    statuses: Collection[Mapping[str, Any]],
) -> None:
    """Raises InputError if another node has other numbers or, in a gang that resizes, libraries.

    `shown` is this node's own status.
    """
    for status in statuses:
        shape = status.get("shape", shown["shape"])
        if shape != shown["shape"]:
            raise InputError(
                "nodes of the sharded gang were started with different numbers",
                got=f"{shown['shape']} here, {shape} at another node",
                allowed="the same --nodes and --processes on all nodes",
                fix=(
                    "use the same --nodes and --processes on every node; to change the size,"
                    " stop all nodes first: the state then comes from the bucket"
                ),
            )
        versions = status.get("versions", shown["versions"])
        if node.resizes and versions != shown["versions"]:
            raise InputError(
                "nodes of the sharded gang have different libraries",
                got=f"{shown['versions']} here, {versions} at another node",
                allowed="one image for all nodes: a node that joins continues their state",
                fix="name the image by its digest; to change it, stop all nodes first",
            )
