"""DTensors, without an import of torch.distributed.tensor.

That package brings SymPy along: half a second of every start, also of programs that shard nothing. A DTensor can only
exist where its package has been imported by somebody else.
"""

import sys
from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def as_dtensor(tensor: torch.Tensor) -> "DTensor | None":
    package = sys.modules.get("torch.distributed.tensor")
    # Absent in a package that another thread is just importing.
    kind = getattr(package, "DTensor", None)
    return cast("DTensor", tensor) if kind is not None and isinstance(tensor, kind) else None


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's memory, without its graph."""
    # No full_tensor(): it is a collective, and a save must not contain one.
    sharded = as_dtensor(tensor)
    return (tensor if sharded is None else sharded.to_local()).detach()
