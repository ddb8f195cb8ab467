"""Finds the member that slows an elastic gang down.

Each member's time for a shard is part of the gradients' all-reduce, like its flags.
"""

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.training.trainer.metrics import Stopwatch, describe_slowest

# Writing into the all-reduce takes 0.2 ms of a step, because the processor's caches are cold then.
STEPS_PER_EXCHANGE = 5
_UNIT_S = 1e-4
_MAX_UNITS = 65_000
"""Largest number that a sum in half precision can hold."""


class ShardTimer(Stopwatch):
    """Measures this member's time per shard and collects that of all members."""

    def __init__(self, device: torch.device, *, shards: int) -> None:
        """`shards` is the number of shards of one step over the whole gang."""
        super().__init__(device)
        self._shards = shards
        self._measured_shards = 0
        """Number of shards that this member measured since the last exchange."""
        self._epoch = 0
        self._totals: dict[int, float] = {}
        """Seconds per shard by member, summed over the steps since the last report."""
        self._slowest: dict[str, Any] = {}

    def end_step(
        self,
        shards: int,
        *,
        step: int,
        epoch: int,
    ) -> int:
        """Records that this member computed `shards` shards of a step.

        At every fifth step returns the time per shard since the last exchange, in units of 0.1 ms,
        else 0. The time of this step is not included: a GPU may still be busy with it, and the
        all-reduce must not wait for it twice.
        """
        if epoch != self._epoch:
            # This step is skipped: a new member starts with a slow one, and shares change.
            self._epoch = epoch
            self._measured_shards = 0
            self._totals = {}
            self._slowest = {}
            self.taken_s()
            return 0
        units = 0
        is_exchange = step % STEPS_PER_EXCHANGE == STEPS_PER_EXCHANGE - 1
        if is_exchange and self._measured_shards:
            shard_s = self.taken_s() / self._measured_shards
            units = min(round(shard_s / _UNIT_S), _MAX_UNITS)
            self._measured_shards = 0
        self.stop()
        self._measured_shards += shards
        return units

    def record(self, units: Sequence[int], members: tuple[int, ...]) -> None:
        """Records an exchange. `units` has the units of every member of the Job, by index;
        `members` are the indices of those that took part.
        """
        # A member that has measured no step yet would look infinitely fast.
        if not all(units[member] for member in members):
            return
        totals = dict[int, float]()
        for member in members:
            seconds = STEPS_PER_EXCHANGE * units[member] * _UNIT_S
            totals[member] = self._totals.get(member, 0.0) + seconds
        self._totals = totals

    def describe_slowest(self) -> dict[str, Any]:
        """Returns fields of a `window` event that name the slowest member and its ratio to the
        others.

        They cover the exchanges since the last call, or repeat the last result if there was none.
        """
        totals = self._totals
        self._totals = {}
        if len(totals) > 1:
            shards_per_member = self._shards / len(totals)
            seconds = {member: shards_per_member * total for member, total in totals.items()}
            self._slowest = describe_slowest(seconds)
        return self._slowest
