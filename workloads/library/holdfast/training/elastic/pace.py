"""Who holds an elastic gang up: each member's time for a shard rides on the gradients' sum, as its flags do."""

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.training.meter import Stopwatch, slowest_of

_UNIT_S = 1e-4
_MOST = 65_000
"""Units; a sum in half precision holds no more."""


class Pace:
    def __init__(self, device: torch.device, *, shards: int) -> None:
        """`shards`: of one step, over the whole gang."""
        self._watch, self._shards = Stopwatch(device), shards
        self._mine = 0
        """Shards of this member's newest step."""
        self._members: tuple[int, ...] = ()
        self._totals: dict[int, float] = {}
        """Place -> seconds for one shard of each step since the last report, added up."""

    def begin(self) -> None:
        self._watch.start()

    def ended(self, mine: int) -> int:
        """This member has computed this number of shards. Units for one of the step before: a GPU may still be busy with
        these, and the sum must not wait for it twice."""
        units = round(self._watch.taken_s() / self._mine / _UNIT_S) if self._mine else 0
        self._watch.stop()
        self._mine = mine
        return min(units, _MOST)

    def took(self, units: Sequence[int], members: tuple[int, ...]) -> None:
        """`units`: of every place, as they were added up. `members`: places that took part."""
        if members != self._members:
            self._members, self._totals = members, {}  # who comes begins with a slow step, and shares change
        # A member that has measured no step yet would look infinitely fast.
        elif all(units[member] for member in members):
            self._totals = {m: self._totals.get(m, 0.0) + units[m] * _UNIT_S for m in members}

    def slowest(self) -> dict[str, Any]:
        """Of the steps since the last call, as fields of a `window` event: which place took longest for its share, and
        how many times as long as the others."""
        totals, self._totals = self._totals, {}
        if len(totals) < 2:
            return {}
        share = self._shards / len(totals)
        return slowest_of({member: share * total for member, total in totals.items()})
