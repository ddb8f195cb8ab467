"""Logical shards: a fixed cut of every global batch, shared out anew whenever the gang changes its size.

The global batch of a step is always the same V shards; a rank of W takes a contiguous range and accumulates. So the
samples, their order and the learning rate do not depend on how many nodes there are. Standard library only.
"""

import math

from holdfast.contract.errors import InputError

# With V = 6 N the slowest rank does at most 4 % more than its share at any size down to N / 2 (N = 8).
SHARDS_PER_RANK = 6
MAX_SHARDS = 1 << 16


def share(shards: int, rank: int, world_size: int) -> range:
    """The shards of one rank: contiguous, in rank order, sizes differ by one at most."""
    return range(shards * rank // world_size, shards * (rank + 1) // world_size)


def efficiency(shards: int, world_size: int) -> float:
    """Of all ranks' time the part that computes: the others wait for those that have one shard more."""
    return shards / (world_size * math.ceil(shards / world_size))


def checked_shards(shards: int, ranks: int, ranks_of_state: int = 1) -> int:
    """`shards`, or the default where it is 0. `ranks_of_state`: so many share one, and take shards at the same time."""
    if not shards:
        return SHARDS_PER_RANK * ranks
    if shards % ranks_of_state:
        raise InputError(
            "number of logical shards does not fit a node",
            got=f"{shards} shards for nodes of {ranks_of_state} processes that share one state",
            allowed=f"multiples of {ranks_of_state}: they work on as many shards at the same time",
            fix=f"shards={max(ranks, shards // ranks_of_state * ranks_of_state)}",
        )
    if not ranks <= shards <= MAX_SHARDS:
        raise InputError(
            "number of logical shards does not fit the gang",
            got=f"{shards} shards for {ranks} processes",
            allowed=f"{ranks} to {MAX_SHARDS}: a process without a shard would do no work",
            fix=f"shards={SHARDS_PER_RANK * ranks}",
        )
    return shards


def checked_nodes(nodes: int, min_nodes: int) -> None:
    if not 1 <= min_nodes <= nodes:
        raise InputError(
            "least number of nodes is out of range",
            got=f"min_nodes {min_nodes} of {nodes} nodes",
            allowed=f"1 to {nodes}",
            fix=f"min_nodes={max(1, nodes // 2)}",
        )
