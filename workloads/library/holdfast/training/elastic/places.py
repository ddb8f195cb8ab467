"""Where the places of a gang are reached, and which of them this process has: as a pod's environment states it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.contract.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_ADDRESS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    PLACE,
)
from holdfast.contract.errors import InputError

MAX_NODES = 1024
DEFAULT_PORT = 29500
ALONE = "127.0.0.1"

Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    nodes: tuple[Address, ...]
    index: int
    min_nodes: int


def of_pod(variables: Mapping[str, str] = os.environ) -> Places:
    """Without the variables of an elastic job: the only place of a gang of one. InputError where one is no number."""
    nodes = _number(variables, ENV_GANG_NODES, 1)
    return Places(
        nodes=addresses(variables.get(ENV_GANG_ADDRESS, ALONE), _number(variables, ENV_GANG_PORT, DEFAULT_PORT), nodes),
        index=_number(variables, ENV_COMPLETION_INDEX, 0) if nodes > 1 else 0,
        min_nodes=_number(variables, ENV_GANG_MIN_NODES, 1),
    )


def addresses(host: str, port: int, nodes: int) -> tuple[Address, ...]:
    """Of every place. Without {place} in `host` all are on one machine, two ports apart."""
    together = PLACE not in host
    last = port + (2 * nodes - 1 if together else 1)
    if not (1 <= nodes <= MAX_NODES and port >= 1 and last <= 65535):
        raise InputError(
            "addresses of the gang",
            got=f"{nodes} nodes from port {port}",
            allowed=f"1 to {MAX_NODES} nodes, ports 1 to 65535",
            fix="--nodes 4 --port 29500",
        )
    if together:
        return tuple((host, port + 2 * place) for place in range(nodes))
    return tuple((host.replace(PLACE, str(place)), port) for place in range(nodes))


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    given = variables.get(name, str(default))
    if not (given.isascii() and given.isdecimal() and len(given) < 9):
        raise InputError(
            f"environment variable {name}", got=repr(given)[:120], allowed="a whole number",
            fix="leave it to the platform: `nodes: 4..8` in the job file sets it",
        )  # fmt: skip
    return int(given)
