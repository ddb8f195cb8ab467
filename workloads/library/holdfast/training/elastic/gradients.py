"""The sum of all shards' gradients over the gang: one collective a step, and every member's flags ride on it.

`p.grad` of each parameter is a view of one flat buffer for each dtype, so nothing is copied before or after. Flags
(who leaves, who asks to come in) are a few more numbers of the same sum: all members learn them at the same step
without a message of their own.

Exact: each shard's gradient is rounded to whole multiples of a power of two and added up as int64. Such a sum does not
depend on who adds what, so the weights do not depend on the number of nodes either. Its price is 8 bytes for each
parameter and twice the bytes on the wire. The power follows the largest gradient seen, the same on every member.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

# |gradient| * 2^-exponent < 1 is kept with this many bits; the sum of up to 2^16 shards then fits 63.
BITS = 46
STEP_UP, HEADROOM, STEP_DOWN = 8, 12, 4


class GradientSum:
    def __init__(self, parameters: Iterable[nn.Parameter], *, flags: int) -> None:
        self._groups = _by_kind([p for p in parameters if p.requires_grad])
        self._flags = flags
        self._flats = [
            torch.zeros(sum(p.numel() for p in group) + flags, dtype=group[0].dtype, device=group[0].device)
            for group in self._groups
        ]
        self._views = [_views(flat, group) for flat, group in zip(self._flats, self._groups, strict=True)]

    @property
    def device(self) -> torch.device:
        return self._flats[0].device

    def begin(self) -> None:
        """Before the first shard of a step."""
        for flat, group, views in zip(self._flats, self._groups, self._views, strict=True):
            flat.zero_()
            for parameter, view in zip(group, views, strict=True):
                parameter.grad = view

    def add_shard(self) -> None:
        """After each shard's backward."""

    def reduce(self, flags: list[int]) -> list[int] | None:
        """The sum over the gang in every `p.grad`; the flags of all members added up. None: do the step again."""
        self._collect()
        self._flats[0][-self._flags :] = torch.tensor(flags, dtype=self._flats[0].dtype)
        for flat in self._flats:
            _all_reduce(flat)
        return [round(flag) for flag in self._flats[0][-self._flags :].tolist()]

    def _collect(self) -> None:
        # A loop that calls optimizer.zero_grad() itself has taken the views away.
        for group, views in zip(self._groups, self._views, strict=True):
            for parameter, view in zip(group, views, strict=True):
                if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                    view.copy_(parameter.grad)
                parameter.grad = view


class ExactGradientSum(GradientSum):
    """`exponent` is state: it must come with a checkpoint and to a newcomer."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, flags: int) -> None:
        super().__init__(parameters, flags=flags)
        self.exponent = 0
        """Gradients of 2^exponent and more do not fit: the step is done again with a larger one."""
        self._sums = [torch.zeros(flat.numel() + 3, dtype=torch.int64, device=flat.device) for flat in self._flats]

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

    def reduce(self, flags: list[int]) -> list[int] | None:
        first = len(self._flats[0]) - self._flags
        self._sums[0][first : first + self._flags] = torch.tensor(flags, dtype=torch.int64)
        for total in self._sums:
            _all_reduce(total)
        ends = [total[-3:].tolist() for total in self._sums]
        # The counts were summed with the gradients, so that every member decides the same.
        if any(too_large for _, too_large, _ in ends):
            self.exponent += STEP_UP
            return None
        for flat, total in zip(self._flats, self._sums, strict=True):
            count = len(flat) - self._flags
            flat[:count] = total[:count].double().mul_(2.0 ** (self.exponent - BITS))
        if any(not_finite for not_finite, _, _ in ends):
            for flat in self._flats:
                flat.fill_(torch.nan)  # as a plain sum would have it, and the same on every member
        if not any(near for _, _, near in ends):
            self.exponent -= STEP_DOWN
        return [int(flag) for flag in self._sums[0][first : first + self._flags].tolist()]


def _all_reduce(tensor: Tensor) -> None:
    if dist.is_initialized():  # a gang of one has no group
        dist.all_reduce(tensor)


def _by_kind(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(groups.values())


def _views(flat: Tensor, group: list[nn.Parameter]) -> list[Tensor]:
    views: list[Tensor] = []
    at = 0
    for parameter in group:
        views.append(flat[at : at + parameter.numel()].view(parameter.shape))
        at += parameter.numel()
    return views
