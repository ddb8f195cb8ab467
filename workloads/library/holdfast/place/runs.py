"""What the simulator is given and what it answers, as arrays: one element a run.

Hours and USD throughout.
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
    """When interruptible capacity is there: one row of ascending toggle times a path, padded with inf.

    An availability trace records whether a request would be granted, so its outages bound from above what a
    running node suffers; a lifetime path records how long nodes ran. The simulator treats both alike.
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


def runs_of(
    count: int,
    *,
    work_h: float,
    restart_h: float,
    deadline_h: float = np.inf,
    interval_h: float = 0.0,
    checkpoint_h: float = 0.0,
    spot_usd: float = 1.0,
    on_demand_usd: float = 1.0,
    idle_usd: float = 0.0,
    # inf: survivors wait as long as the gang does, and are billed for all of it.
    keep_h: float = np.inf,
    path: Ints | None = None,
    offset_h: Floats | None = None,
) -> Runs:
    """`count` runs of one job; by default each on a path of its own, from its beginning."""
    scalars = {
        "work_h": work_h,
        "restart_h": restart_h,
        "deadline_h": deadline_h,
        "interval_h": interval_h,
        "checkpoint_h": checkpoint_h,
        "spot_usd": spot_usd,
        "on_demand_usd": on_demand_usd,
        "idle_usd": idle_usd,
        "keep_h": keep_h,
    }
    return Runs(
        path=np.arange(count) if path is None else path,
        offset_h=np.zeros(count) if offset_h is None else offset_h,
        **{name: np.full(count, float(value)) for name, value in scalars.items()},
    )
