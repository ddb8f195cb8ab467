"""Who holds an elastic gang up: each member's time for a shard rides on the gradients' sum, as its
flags do.
"""

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.training.trainer.metrics import Stopwatch, slowest_of

# To write into the sum takes 0.2 ms of a step, whose own calls find the processor's caches cold.
EVERY = 5
_UNIT_S = 1e-4
_MOST = 65_000
"""Units; a sum in half precision holds no more."""


class Pace(Stopwatch):
    def __init__(self, device: torch.device, *, shards: int) -> None:
        """`shards`: of one step, over the whole gang."""
        super().__init__(device)
        self._shards = shards
        self._mine = 0
        """Shards of this member that were measured since the last exchange."""
        self._epoch = 0
        self._totals: dict[int, float] = {}
        """Place -> seconds for one shard of each step since the last report, added up."""
        self._slowest: dict[str, Any] = {}

    def ended(self, mine: int, *, step: int, epoch: int) -> int:
        """This member has computed this number of shards. Units for one of those since the last
        exchange, at every fifth step, else 0. Without these: a GPU may still be busy with them, and
        the sum must not wait for it twice.
        """
        if epoch != self._epoch:
            # Not this step: who comes begins with a slow one, and shares change.
            self._epoch = epoch
            self._mine = 0
            self._totals = {}
            self._slowest = {}
            self.taken_s()
            return 0
        units = 0
        if step % EVERY == EVERY - 1 and self._mine:
            units = min(round(self.taken_s() / self._mine / _UNIT_S), _MOST)
            self._mine = 0
        self.stop()
        self._mine += mine
        return units

    def took(self, units: Sequence[int], members: tuple[int, ...]) -> None:
        """`units`: of every place, as they were added up. `members`: places that took part."""
        # A member that has measured no step yet would look infinitely fast.
        if all(units[member] for member in members):
            self._totals = {
                m: self._totals.get(m, 0.0) + EVERY * units[m] * _UNIT_S for m in members
            }

    def slowest(self) -> dict[str, Any]:
        """Of the exchanges since the last call, else of the newest one, as fields of a `window`
        event: which place took longest for its share, and how many times as long as the others.
        """
        totals = self._totals
        self._totals = {}
        if len(totals) > 1:
            share = self._shards / len(totals)
            self._slowest = slowest_of({member: share * total for member, total in totals.items()})
        return self._slowest
