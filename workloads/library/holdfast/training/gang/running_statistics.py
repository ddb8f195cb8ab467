"""Running statistics of normalization layers, as state of the whole gang.

BatchNorm normalizes each logical shard by the shard's own statistics, and updates its buffers in
the forward pass: from which shards, and in which order, would depend on the member. Here every
shard starts with the buffers of the step before, and the step's update is the mean over its shards.
Updates are summed as integers, so all members have the same bits for every size of the gang.
"""

# Why it is so: infra/decisions/0150.

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from holdfast.support.errors import InputError
from holdfast.training.gang.exact_integers import join, make_zeros, split


class RunningStatistics:
    """Buffers of the normalization layers of some modules, over all shards of a step."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        shards: int,
        exact: bool,
        is_batch_over_ranks: bool,
    ) -> None:
        """`is_batch_over_ranks`: whether SyncBatchNorm normalizes several ranks' shards together.

        Raises InputError if statistics of a layer depend on the size of the gang.
        """
        self._modules = modules
        self._shards = shards
        self._layers: list[_NormBase] = []
        for module in modules:
            for name, layer in module.named_modules():
                if exact and is_batch_over_ranks and isinstance(layer, nn.SyncBatchNorm):
                    raise _make_sync_error(name)
                if isinstance(layer, _NormBase) and layer.track_running_stats:
                    self._layers.append(layer)
        self._buffers: list[Tensor] = []
        """Buffers of the layers in this step."""
        self._start: list[Tensor] = []
        """Their values at the start of the step; empty between two steps."""
        self.sums: list[Tensor] = []
        """Tensors that members sum in a step; empty if no layer has such buffers."""
        self._checks_others = exact
        self.is_active = exact or bool(self._layers)
        """False if the methods below have nothing to do: an undisturbed step then calls none."""
        self._others: dict[tuple[int, str], Tensor] = {}
        """Values of the buffers of other layers before the first shard."""

    def begin_step(self) -> None:
        """Called before the first shard of a step."""
        self.abandon_step()
        if not self._layers:
            return
        # A restore may have replaced them.
        self._buffers = [buffer for layer in self._layers for buffer in layer.buffers()]
        self._start = [buffer.clone() for buffer in self._buffers]
        count = sum(buffer.numel() for buffer in self._buffers)
        self.sums = [make_zeros(count, self._buffers[0].device)]

    def begin_shard(self) -> None:
        """Called before the forward pass of each shard."""
        if self._checks_others and not self._others:
            self._others = {key: buffer.clone() for key, buffer in self._list_others()}
        self._restore()

    def add_shard(self) -> None:
        """Adds a shard's update to that of the step.

        Raises InputError, in the first step, if a buffer of another layer has changed.
        """
        if self._checks_others:
            self._check_others()
        if not self._layers:
            return
        update = _flatten(self._buffers) - _flatten(self._start)
        for total, part in zip(self.sums[0], split(update), strict=True):
            total += part

    def end_step(self) -> None:
        """Updates the buffers by the sums of all members."""
        if not self._layers:
            return
        coarse, fine, faults = self.sums[0]
        update = join(coarse, fine) / self._shards
        update.masked_fill_(faults > 0, torch.nan)
        values = _flatten(self._start) + update
        sizes = [buffer.numel() for buffer in self._buffers]
        with torch.no_grad():
            for buffer, value in zip(self._buffers, values.split(sizes), strict=True):
                buffer.copy_(value.view(buffer.shape))
        self._start = []

    def abandon_step(self) -> None:
        """Gives the buffers their values at the start of a step that is not applied."""
        self._restore()
        self._start = []

    def _restore(self) -> None:
        if not self._start:
            return
        with torch.no_grad():
            for buffer, start in zip(self._buffers, self._start, strict=True):
                buffer.copy_(start)

    def _list_others(self) -> list[tuple[tuple[int, str], Tensor]]:
        """Returns the buffers of other layers by the number of their module and their name."""
        handled = {id(buffer) for layer in self._layers for buffer in layer.buffers()}
        other_buffers: list[tuple[tuple[int, str], Tensor]] = []
        for number, module in enumerate(self._modules):
            for name, buffer in module.named_buffers():
                if id(buffer) not in handled:
                    other_buffers.append(((number, name), buffer))
        return other_buffers

    def _check_others(self) -> None:
        self._checks_others = False
        self.is_active = bool(self._layers)
        starts = self._others
        self._others = {}
        for key, buffer in self._list_others():
            start = starts.get(key, buffer)
            # A cache of constants that became too small has another shape.
            if start.shape == buffer.shape and not torch.equal(start, buffer):
                raise InputError(
                    "a buffer changes in the forward pass, so it depends on the gang's size",
                    got=f"buffer {key[1]} of the model, with exact=True",
                    allowed="running statistics of BatchNorm and InstanceNorm, and constants",
                    fix=f"compute {key[1]} after the optimizer's step, or use exact=False",
                )


def _flatten(buffers: Sequence[Tensor]) -> Tensor:
    return torch.cat([buffer.detach().reshape(-1).double() for buffer in buffers])


def _make_sync_error(name: str) -> InputError:
    return InputError(
        "SyncBatchNorm depends on the gang's size",
        got=f"layer {name} of the model, with exact=True",
        allowed="BatchNorm, which normalizes each logical shard by itself",
        fix="leave convert_sync_batchnorm out and take larger shards, or use exact=False",
    )
