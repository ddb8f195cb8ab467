"""The input and the output of the simulator as arrays, with one element for each run.

Times are in hours and prices in USD.
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
    """The times at which interruptible capacity toggles: an ascending row for each path.

    Rows are padded with inf. An availability trace records whether a request would be granted, so
    its outages bound from above what a running node suffers; a lifetime path records how long nodes
    ran. The simulator treats both in the same way.
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
    """Billed but useless: the time between the machine's start and the first new step."""
    interval_h: Floats
    """Work between checkpoints; 0: continuous, nothing is ever lost; inf: none, all is."""
    checkpoint_h: Floats
    """Time for which one checkpoint blocks the work."""
    spot_usd: Floats
    on_demand_usd: Floats
    idle_usd: Floats
    """Price of an hour of waiting after the first start: the other nodes of a gang are billed."""
    keep_h: Floats
    """Billed part of each wait; then the autoscaler has removed the nodes."""
    path: Ints
    offset_h: Floats
    """Time on its path at which the run begins."""

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
    """The result of each run; a finish of inf means that the capacity never came back."""

    finish_h: Floats
    usd: Floats
    spot_h: Floats
    on_demand_h: Floats
    evictions: Floats


def take(columns: Columns, rows: slice | Ints | Bools) -> Columns:
    """Return the same dataclass of arrays with only these rows."""
    # Fancy indexing copies: the caller may change the rows without touching the original.
    kind = type(columns)
    return kind(**{f.name: getattr(columns, f.name)[rows] for f in fields(columns)})


def stack(parts: list[Columns]) -> Columns:
    """Return one dataclass of arrays with the rows of all parts, in their order."""
    kind = type(parts[0])
    columns: dict[str, Any] = {}
    for column in fields(parts[0]):
        arrays = [getattr(part, column.name) for part in parts]
        columns[column.name] = np.concatenate(arrays)
    return kind(**columns)


# The defaults of a job. An infinite keep_h: survivors are billed for as long as the gang waits.
_DEFAULTS = {
    "deadline_h": np.inf,
    "interval_h": 0.0,
    "checkpoint_h": 0.0,
    "spot_usd": 1.0,
    "on_demand_usd": 1.0,
    "idle_usd": 0.0,
    "keep_h": np.inf,
}


def make_runs(
    count: int, *, path: Ints | None = None, offset_h: Floats | None = None, **values: float
) -> Runs:
    """Return `count` runs of one job, of which `work_h` and `restart_h` are required.

    By default each run has a path of its own and starts at its beginning.
    """
    columns: dict[str, Any] = {}
    for name, value in (_DEFAULTS | values).items():
        columns[name] = np.full(count, float(value))
    # On one path all runs would be preempted together, and their spread would be that of one.
    if path is None:
        path = np.arange(count)
    if offset_h is None:
        offset_h = np.zeros(count)
    return Runs(path=path, offset_h=offset_h, **columns)
