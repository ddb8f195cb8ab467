"""Addresses of a gang's processes, and the number of this one, from a pod's environment.

Each process has a number, its place. The processes of a node have consecutive numbers and ports of
their own.
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
LOOPBACK = "127.0.0.1"

Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    nodes: tuple[Address, ...]
    """Address of every process, node by node."""
    index: int
    """Number of this process."""
    min_nodes: int = 1
    ranks_per_node: int = 1
    """Number of consecutive processes that belong to one node."""

    def __post_init__(self) -> None:
        # A node with fewer processes would shift the numbers of all nodes after it.
        if self.ranks_per_node < 1 or len(self.nodes) % self.ranks_per_node:
            raise InputError(
                "processes of a node",
                got=f"{self.ranks_per_node} with {len(self.nodes)} addresses",
                allowed="a number that divides the addresses: every node has the same number",
                fix="an address for each process, node by node",
            )
        between(
            "member index is out of range",
            self.index,
            0,
            len(self.nodes) - 1,
            fix="JOB_COMPLETION_INDEX of the pod",
        )
        node_count = len(self.nodes) // self.ranks_per_node
        between(
            "min_nodes is out of range",
            self.min_nodes,
            1,
            node_count,
        )


def gang_id(nodes: tuple[Address, ...]) -> str:
    """Returns an id that all processes of a gang compute alike.

    Another Job under the same run name has other addresses, and so another id.
    """
    digest = hashlib.sha256(repr(nodes).encode())
    return digest.hexdigest()[:16]


def read_places(variables: Mapping[str, str] = os.environ) -> Places:
    """Reads the addresses of the gang from a pod's environment.

    Without the variables of an elastic job it is a gang of one process. Raises InputError.
    """
    nodes = _read_number(variables, ENV_GANG_NODES, 1)
    ranks = _read_number(variables, ENV_LOCAL_WORLD_SIZE, 1)
    # Every Indexed Job sets the index: without a gang it means nothing here.
    node = _read_number(variables, ENV_COMPLETION_INDEX, 0) if nodes > 1 else 0
    port = _read_number(variables, ENV_GANG_PORT, DEFAULT_PORT)
    host = variables.get(ENV_GANG_ADDRESS, LOOPBACK)
    return Places(
        nodes=addresses(host, port, nodes, ranks),
        index=node * ranks + _read_number(variables, ENV_LOCAL_RANK, 0),
        min_nodes=_read_number(variables, ENV_GANG_MIN_NODES, 1),
        ranks_per_node=ranks,
    )


def addresses(
    host: str,
    port: int,
    nodes: int,
    ranks: int = 1,
) -> tuple[Address, ...]:
    """Returns the address of every process, node by node.

    {place} in `host` is replaced by the node's number; without it all nodes are on one machine.
    Processes on one machine are two ports apart, as the port above each is used for the process
    groups of an epoch. Raises InputError if a number is out of range.
    """
    on_one_machine = PLACE not in host
    processes_per_host = nodes * ranks if on_one_machine else ranks
    last_port = port + 2 * processes_per_host - 1
    if not (
        1 <= nodes <= MAX_NODES and 1 <= ranks <= MAX_RANKS and port >= 1 and last_port <= 65535
    ):
        raise InputError(
            "addresses of the gang",
            got=f"{nodes} nodes of {ranks} processes from port {port}",
            allowed=f"1 to {MAX_NODES} nodes, 1 to {MAX_RANKS} processes of each, ports 1 to 65535",
            fix="--nodes 4, and no HOLDFAST_GANG_PORT",
        )
    if on_one_machine:
        ports = range(port, last_port, 2)
        return tuple((host, process_port) for process_port in ports)
    process_addresses = list[Address]()
    for node in range(nodes):
        node_host = host.replace(PLACE, str(node))
        for rank in range(ranks):
            process_addresses.append((node_host, port + 2 * rank))
    return tuple(process_addresses)


def _read_number(
    variables: Mapping[str, str],
    name: str,
    default: int,
) -> int:
    text = variables.get(name, str(default))
    # int() accepts digits of every script, thousands of digits, signs and spaces.
    is_number = text.isascii() and text.isdecimal() and len(text) < 9
    if not is_number:
        raise InputError(
            f"environment variable {name}",
            got=repr(text)[:120],
            allowed="a whole number",
            fix="let the platform set it with `nodes: 4..8` in the job file",
        )
    return int(text)
