"""Logical shards: a fixed cut of every global batch, shared out again whenever the gang changes its
size.

The global batch of a step is always the same V shards; a rank of W takes a contiguous range and
accumulates. So the samples, their order and the learning rate do not depend on how many nodes there
are. A gang's checkpoint says how the batch was cut, and a resumed gang compares.
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


def share(shards: int, rank: int, world_size: int) -> range:
    """The shards of one rank: contiguous, in rank order, sizes differ by one at most."""
    # Contiguous and computed, not dealt out: a member knows its own without a message.
    return range(shards * rank // world_size, shards * (rank + 1) // world_size)


def checked_shards(shards: int, ranks: int, ranks_of_state: int = 1) -> int:
    """`shards`, or the default where it is 0. `ranks_of_state`: that many share one, and take
    shards at the same time.

    Raises InputError for a number that leaves a process without work.
    """
    if not shards:
        return SHARDS_PER_RANK * ranks
    if shards % ranks_of_state or not ranks <= shards <= MAX_SHARDS:
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
            # Kernels of another type round differently, so the bits would depend on who has which
            # shard.
            self._facts["gpu"] = _gpu_of(gradients.device)

    def state_dict(self) -> dict[str, Any]:
        exponent = self._gradients.exponent if isinstance(self._gradients, ExactGradientSum) else 0
        return self._facts | {"exponent": exponent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises InputError where a fact differs from that of the run."""
        check_facts(self._facts, state)
        if isinstance(self._gradients, ExactGradientSum):
            self._gradients.exponent = int(state["exponent"])


def _gpu_of(device: torch.device) -> str:
    """Empty on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""
