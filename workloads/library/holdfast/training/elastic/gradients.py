"""The sum of all shards' gradients over the gang: one collective a step, and every member's flags
ride on it.

`p.grad` of each parameter is a view of one flat buffer for each dtype, so nothing is copied before
or after. Flags (who leaves, who asks to come in) are a few more numbers of the same sum: all
members learn them at the same step without a message of their own.

Exact: each shard's gradient is rounded to whole multiples of a power of two and added up as int64.
Such a sum does not depend on who adds what, so the weights do not depend on the number of nodes
either. Its price is 8 bytes for each parameter and twice the bytes on the wire. The power follows
the largest gradient seen, the same on every member.

Of a sharded model each rank of a node adds up its own shard, with the ranks of its number on other
nodes.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.checkpoint.state.tensors import as_dtensor, local_of
from holdfast.training.errors import GroupLost
from holdfast.training.gang.node import ALONE, Node

# |gradient| * 2^-exponent < 1 is kept with this many bits; the sum of up to 2^16 shards then fits
# 63.
BITS = 46
STEP_UP = 8
HEADROOM = 12
STEP_DOWN = 4


class GradientSum:
    def __init__(self, parameters: Iterable[nn.Parameter], *, flags: int) -> None:
        self._groups = _by_kind([p for p in parameters if p.requires_grad])
        self._flags = flags
        self.device = self._groups[0][0].device
        self._flats = [
            torch.zeros(
                sum(local_of(p).numel() for p in group) + flags,
                dtype=group[0].dtype,
                device=group[0].device,
            )
            for group in self._groups
        ]
        self._flags_sum = self._flats[0][-flags:]
        self._views = [
            _views(flat, group) for flat, group in zip(self._flats, self._groups, strict=True)
        ]
        self._grads = [
            [_like(parameter, view) for parameter, view in zip(group, views, strict=True)]
            for group, views in zip(self._groups, self._views, strict=True)
        ]

    def begin(self) -> None:
        """Before the first shard of a step."""
        for flat, group, grads in zip(self._flats, self._groups, self._grads, strict=True):
            flat.zero_()
            for parameter, grad in zip(group, grads, strict=True):
                parameter.grad = grad

    def add_shard(self) -> None:
        """After each shard's backward."""

    def reduce(
        self, flags: list[int], group: dist.ProcessGroup | None = None, node: Node = ALONE
    ) -> list[int] | None:
        """The sum over the gang in every `p.grad`; the flags of all members added up. None: do the
        step again.

        Raises GroupLost or RuntimeError, on all ranks of a node.
        """
        self._collect()
        _write(flags, self._flags_sum)
        with node.together(self._flags) as agreed:
            _add_up(self._flats, group)
            agreed += [round(flag) for flag in self._flags_sum.tolist()]
        return agreed

    def _collect(self) -> None:
        # A loop that calls optimizer.zero_grad() itself has taken the views away.
        for group, views, grads in zip(self._groups, self._views, self._grads, strict=True):
            for parameter, view, grad in zip(group, views, grads, strict=True):
                found = parameter.grad
                if found is grad:  # autograd has added to it in place
                    continue
                if found is not None and (local := local_of(found)).data_ptr() != view.data_ptr():
                    view.copy_(local)
                parameter.grad = grad


class ExactGradientSum(GradientSum):
    """`exponent` is state: it must come with a checkpoint and to a newcomer."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, flags: int) -> None:
        super().__init__(parameters, flags=flags)
        self.exponent = 0
        self._raised = 0
        """Gradients of 2^exponent and more do not fit: the step is done again with a larger one."""
        self._sums = [
            torch.zeros(flat.numel() + 3, dtype=torch.int64, device=flat.device)
            for flat in self._flats
        ]
        self._flags_sum = self._sums[0][-flags - 3 : -3]

    def begin(self) -> None:
        super().begin()
        for total in self._sums:
            total.zero_()

    def add_shard(self) -> None:
        self._collect()
        for flat, total in zip(self._flats, self._sums, strict=True):
            values = flat[: -self._flags].double()
            largest = values.abs().max() if len(values) else values.new_zeros(())
            finite = bool(torch.isfinite(largest))
            fits = finite and float(largest) < 2.0**self.exponent
            total[-3] += not finite
            total[-2] += finite and not fits
            total[-1] += finite and float(largest) >= 2.0 ** (self.exponent - HEADROOM)
            if fits:
                total[: len(values)] += values.mul_(2.0 ** (BITS - self.exponent)).round_().long()
            flat.zero_()

    def reduce(
        self, flags: list[int], group: dist.ProcessGroup | None = None, node: Node = ALONE
    ) -> list[int] | None:
        _write(flags, self._flags_sum)
        try:
            with node.together(self._flags + 3 * len(self._sums)) as agreed:
                _add_up(self._sums, group)
                agreed += self._flags_sum.tolist()
                for total in self._sums:
                    agreed += total[-3:].tolist()
        except (GroupLost, RuntimeError):
            # Of this step's tries the others may have had one less, and would go on with the
            # exponent before it.
            self.exponent = self.exponent - self._raised
            self._raised = 0
            raise
        # The counts were summed with the gradients, so that every member decides the same, and
        # every rank of a node.
        flags = agreed[: self._flags]
        ends = agreed[self._flags :]
        not_finite = any(ends[0::3])
        too_large = any(ends[1::3])
        near = any(ends[2::3])
        if too_large:
            self.exponent = self.exponent + STEP_UP
            self._raised = self._raised + STEP_UP
            return None
        self._raised = 0
        for flat, total in zip(self._flats, self._sums, strict=True):
            count = len(flat) - self._flags
            flat[:count] = total[:count].double().mul_(2.0 ** (self.exponent - BITS))
        if not_finite:
            for flat in self._flats:
                flat.fill_(torch.nan)  # as a plain sum would have it, and the same on every member
        if not near:
            self.exponent -= STEP_DOWN
        return flags


def _write(flags: list[int], sum_of_flags: Tensor) -> None:
    if any(flags):  # the step began with zeros
        sum_of_flags.copy_(torch.tensor(flags, dtype=sum_of_flags.dtype))


def _add_up(tensors: list[Tensor], group: dist.ProcessGroup | None) -> None:
    if group is not None:  # a gang of one has none
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)


def _by_kind(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(groups.values())


def _views(flat: Tensor, group: list[nn.Parameter]) -> list[Tensor]:
    views: list[Tensor] = []
    at = 0
    for parameter in group:
        local = local_of(parameter)
        views.append(flat[at : at + local.numel()].view(local.shape))
        at += local.numel()
    return views


def _like(parameter: nn.Parameter, view: Tensor) -> Tensor:
    """The view as a gradient of it: FSDP2 adds to the memory of a DTensor."""
    sharded = as_dtensor(parameter.data)
    if sharded is None:
        return view
    return type(sharded).from_local(
        view,
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=sharded.shape,
        stride=sharded.stride(),
    )
