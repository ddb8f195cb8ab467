"""Logical shards: a fixed division of every global batch, assigned again when the gang changes
size.

The global batch of a step is always the same V shards; each of W ranks takes a contiguous range and
accumulates. So the samples, their order and the learning rate do not depend on the number of nodes.
A gang's checkpoint records the division, and a resumed gang compares it.
"""

from collections.abc import Mapping
from typing import Any

import torch

from holdfast.support.errors import InputError
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.trainer.progress import check_facts

# With V = 6 N the slowest rank does at most 4 % more than its share at any size down to N / 2 (N =
# 8).
SHARDS_PER_RANK = 6
MAX_SHARDS = 1 << 16


def share(
    shards: int,
    rank: int,
    world_size: int,
) -> range:
    """Returns the shards of one rank: contiguous, in rank order, sizes differ by one at most."""
    # Computed from the arguments, so that a member knows its shards without a message.
    start = shards * rank // world_size
    end = shards * (rank + 1) // world_size
    return range(start, end)


def resolve_shards(
    shards: int,
    ranks: int,
    ranks_of_state: int = 1,
) -> int:
    """Returns `shards`, or the default if it is 0.

    `ranks_of_state` is the number of ranks that share one state and take shards at the same time.
    Raises InputError for a number that leaves a process without work.
    """
    if not shards:
        return SHARDS_PER_RANK * ranks
    is_in_range = ranks <= shards <= MAX_SHARDS
    if shards % ranks_of_state or not is_in_range:
        raise InputError(
            "number of logical shards does not fit the gang",
            got=f"{shards} shards for {ranks} processes, of which {ranks_of_state} share one state",
            allowed=(
                f"{ranks} to {MAX_SHARDS}, a multiple of {ranks_of_state}: processes that share a"
                " state get equally many"
            ),
            fix=f"shards={SHARDS_PER_RANK * ranks}",
        )
    return shards


class GangProgress:
    """Entry of the checkpoint that records how the gang divides its batches and sums gradients."""

    def __init__(
        self,
        *,
        shards: int,
        seed: int,
        facts: Mapping[str, str | int],
        gradients: GradientSum,
    ) -> None:
        exact = isinstance(gradients, ExactGradientSum)
        self._facts: dict[str, Any] = {
            "shards": shards,
            "seed": seed,
            "exact": exact,
            **facts,
        }
        self._gradients = gradients
        if exact:
            # Kernels of another GPU model round differently, so the bits would depend on which
            # member has which shard.
            self._facts["gpu"] = _get_gpu_name(gradients.device)

    def state_dict(self) -> dict[str, Any]:
        exponent = 0
        if isinstance(self._gradients, ExactGradientSum):
            exponent = self._gradients.exponent
        return {
            **self._facts,
            "exponent": exponent,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the exponent. Raises InputError if a fact differs from that of the run."""
        check_facts(self._facts, state)
        if isinstance(self._gradients, ExactGradientSum):
            self._gradients.exponent = int(state["exponent"])


def _get_gpu_name(device: torch.device) -> str:
    """Returns the model of the GPU, or an empty string for a CPU."""
    if device.type != "cuda":
        return ""
    return torch.cuda.get_device_name(device)
