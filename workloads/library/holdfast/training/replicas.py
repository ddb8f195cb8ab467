"""DDP whose sums do not depend on when the process began."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def replicate(model: nn.Module) -> DistributedDataParallel:
    """The model under DistributedDataParallel, on every rank alike, with the buckets that it will have in every step.

    DDP otherwise rearranges its buckets after the first step of a process. From three ranks on, a restarted process
    would then sum the gradients of its first step in another order than one that never stopped, and end in other bits.
    `find_unused_parameters=True` also prevents it, at the price of a walk over the graph in each step.
    """
    replicas = DistributedDataParallel(model)
    # What DDP does itself after a step in which the gradients came in this order.
    replicas.reducer._push_all_rebuilt_params()
    replicas.reducer._rebuild_buckets()
    return replicas
