"""Where the places of a gang are reached, and which of them this process has: as a pod's
environment states it.

A place is one process. Those of one node have neighbouring places, and ports of their own.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_ADDRESS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_LOCAL_RANK,
    ENV_LOCAL_WORLD_SIZE,
    PLACE,
)

MAX_NODES = 1024
MAX_RANKS = 64
DEFAULT_PORT = 29500
ALONE = "127.0.0.1"

Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    nodes: tuple[Address, ...]
    """Of every place."""
    index: int
    """Of this process's."""
    min_nodes: int = 1
    ranks_per_node: int = 1
    """Neighbouring places are of one node."""

    def __post_init__(self) -> None:
        # A node with fewer processes would shift the places of all nodes after it.
        if self.ranks_per_node < 1 or len(self.nodes) % self.ranks_per_node:
            raise InputError(
                "processes of a node",
                got=f"{self.ranks_per_node} with {len(self.nodes)} addresses",
                allowed="a number that divides the addresses: every node has the same number",
                fix="an address for each process, node by node",
            )
        between(
            "place is out of range",
            self.index,
            0,
            len(self.nodes) - 1,
            fix="JOB_COMPLETION_INDEX of the pod",
        )
        between(
            "min_nodes is out of range", self.min_nodes, 1, len(self.nodes) // self.ranks_per_node
        )


def gang_id(nodes: tuple[Address, ...]) -> str:
    """The same for all places of a gang; another Job under the same run name has other addresses."""
    return hashlib.sha256(repr(nodes).encode()).hexdigest()[:16]


def read_places(variables: Mapping[str, str] = os.environ) -> Places:
    """Without the variables of an elastic job: the only place of a gang of one. Raises InputError."""
    nodes = _number(variables, ENV_GANG_NODES, 1)
    ranks = _number(variables, ENV_LOCAL_WORLD_SIZE, 1)
    # Every Indexed Job sets the index: without a gang it is no place.
    node = _number(variables, ENV_COMPLETION_INDEX, 0) if nodes > 1 else 0
    port = _number(variables, ENV_GANG_PORT, DEFAULT_PORT)
    return Places(
        nodes=addresses(variables.get(ENV_GANG_ADDRESS, ALONE), port, nodes, ranks),
        index=node * ranks + _number(variables, ENV_LOCAL_RANK, 0),
        min_nodes=_number(variables, ENV_GANG_MIN_NODES, 1),
        ranks_per_node=ranks,
    )


def addresses(host: str, port: int, nodes: int, ranks: int = 1) -> tuple[Address, ...]:
    """Of every place, node by node. {place} in `host` is replaced by the node; without it all are
    on one machine. Places on one machine are two ports apart. Raises InputError for numbers out of
    range.
    """
    together = PLACE not in host
    most = nodes * ranks if together else ranks
    if not (
        1 <= nodes <= MAX_NODES
        and 1 <= ranks <= MAX_RANKS
        and port >= 1
        and port + 2 * most - 1 <= 65535
    ):
        raise InputError(
            "addresses of the gang",
            got=f"{nodes} nodes of {ranks} processes from port {port}",
            allowed=f"1 to {MAX_NODES} nodes, 1 to {MAX_RANKS} processes of each, ports 1 to 65535",
            fix="--nodes 4, and no HOLDFAST_GANG_PORT",
        )
    if together:
        # The port above each is where the groups of an epoch meet.
        return tuple((host, port + 2 * place) for place in range(nodes * ranks))
    return tuple(
        (host.replace(PLACE, str(node)), port + 2 * rank)
        for node in range(nodes)
        for rank in range(ranks)
    )


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    given = variables.get(name, str(default))
    # int() takes digits of every script and numbers of thousands of digits, signs and spaces.
    if not (given.isascii() and given.isdecimal() and len(given) < 9):
        raise InputError(
            f"environment variable {name}",
            got=repr(given)[:120],
            allowed="a whole number",
            fix="let the platform set it with `nodes: 4..8` in the job file",
        )
    return int(given)
