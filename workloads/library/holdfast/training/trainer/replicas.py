"""DDP whose gradient sums do not depend on when the process started."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def replicate(model: nn.Module) -> DistributedDataParallel:
    """Returns the model under DistributedDataParallel, with the buckets that it will have in every
    step. Call on every rank.

    DDP otherwise rearranges its buckets after the first step of a process. From three ranks on, a
    restarted process would then sum the gradients of its first step in another order than one that
    never stopped, and its weights would differ in their last bits. `find_unused_parameters=True`
    also prevents it, at the cost of a walk over the graph in each step.
    """
    replicas = DistributedDataParallel(model)
    # A backward pass of zeros shows DDP the order of gradients: the last parameter's first, as in a
    # step. DDP sums its buckets in that order, while the gradients of earlier layers are still
    # computed.
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    replicas.reducer.prepare_for_backward([])
    zeros = [(parameter * 0).sum() for parameter in parameters]
    torch.autograd.backward(zeros)
    for parameter in parameters:
        parameter.grad = None
    replicas.reducer._rebuild_buckets()
    return replicas
