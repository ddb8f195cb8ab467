"""What the simulator is given and what it answers, as arrays: one element a run. Hours and USD
throughout.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


# numpy has no table type that the checker follows; a dataclass of arrays is one.
class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Columns = TypeVar("Columns", bound=_Dataclass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """When interruptible capacity is there: one row of ascending toggle times a path, padded with
    inf.

    An availability trace records whether a request would be granted, so its outages bound from
    above what a running node suffers; a lifetime path records how long nodes ran. The simulator
    treats both in the same way.
    """

    edges_h: Floats
    starts_up: Bools
    planned: bool = False
    """Ends are known beforehand (flex-start): a last checkpoint is taken and no work is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    work_h: Floats
    deadline_h: Floats
    restart_h: Floats
    """Billed but useless: from the machine being there to the first new step."""
    interval_h: Floats
    """Work between checkpoints; 0: continuous, nothing is ever lost; inf: none, all is."""
    checkpoint_h: Floats
    """How long one checkpoint blocks."""
    spot_usd: Floats
    on_demand_usd: Floats
    idle_usd: Floats
    """Per hour of waiting after the first start: nodes of a gang that wait for the lost one."""
    keep_h: Floats
    """How long of each wait they are billed; then the autoscaler has removed them."""
    path: Ints
    offset_h: Floats
    """Where on its path the run begins."""

    def __len__(self) -> int:
        return len(self.work_h)

    @property
    def period_h(self) -> Floats:
        return self.interval_h + self.checkpoint_h

    @property
    def loss_h(self) -> Floats:
        """The most work that one eviction undoes."""
        return np.minimum(self.interval_h, self.work_h)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """finish inf: the capacity never came back."""

    finish_h: Floats
    usd: Floats
    spot_h: Floats
    on_demand_h: Floats
    evictions: Floats


def take(columns: Columns, rows: slice | Ints | Bools) -> Columns:
    """The same dataclass of arrays with only these rows."""
    # Fancy indexing copies: the caller may change the rows without touching the original.
    kind = type(columns)
    return kind(**{f.name: getattr(columns, f.name)[rows] for f in fields(columns)})


def stack(parts: list[Columns]) -> Columns:
    kind = type(parts[0])
    names = [f.name for f in fields(parts[0])]
    return kind(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


# What a job has where nothing else is said; keep_h inf: survivors are billed for as long as the
# gang waits.
_USUAL = {
    "deadline_h": np.inf,
    "interval_h": 0.0,
    "checkpoint_h": 0.0,
    "spot_usd": 1.0,
    "on_demand_usd": 1.0,
    "idle_usd": 0.0,
    "keep_h": np.inf,
}


def runs_of(
    count: int, *, path: Ints | None = None, offset_h: Floats | None = None, **each: float
) -> Runs:
    """`count` runs of one job, of which work_h and restart_h are needed; by default each on a path
    of its own, from its beginning.
    """
    columns: dict[str, Any] = {
        name: np.full(count, float(value)) for name, value in (_USUAL | each).items()
    }
    # On one path all runs would be preempted together, and their spread would be that of one.
    path = np.arange(count) if path is None else path
    return Runs(path=path, offset_h=np.zeros(count) if offset_h is None else offset_h, **columns)
