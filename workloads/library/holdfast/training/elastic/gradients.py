"""Sums the gradients of all shards over the gang: one all-reduce a step, with every member's flags.

`p.grad` of each parameter is a view of one flat buffer for each dtype, so nothing is copied before
or after. Flags (which members leave, whether some ask to join) are a few more numbers in the same
all-reduce: all members learn them at the same step, without a message of their own.

The exact sum rounds each shard's gradient to whole multiples of a power of two and adds them up as
int64. Such a sum does not depend on which member adds what, so the weights do not depend on the
number of nodes. It costs 8 bytes for each parameter and twice the bytes on the wire. The power
follows the largest gradient so far, which is the same on every member.

For a sharded model each rank of a node sums its own shard with the same local rank of other nodes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.checkpoint.state.tensors import as_dtensor, to_local
from holdfast.training.errors import GroupLost
from holdfast.training.gang.node import ALONE, Node
from holdfast.training.gang.recomputation import NOT_FINITE, digest_values, fold

# |gradient| * 2^-exponent < 1 is rounded to this many bits; the sum of up to 2^16 shards then fits
# 63.
BITS = 46
STEP_UP = 8
HEADROOM = 12
STEP_DOWN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slot:
    """A parameter and its part of the flat buffer."""

    parameter: nn.Parameter
    view: Tensor
    grad: Tensor
    """The view as a gradient of the parameter: a DTensor over it if the parameter is one."""


class GradientSum:
    """Sums gradients in the parameters' own dtypes."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, flags: int) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        groups = _group_by_dtype(trained)
        self.device = groups[0][0].device
        self._flag_count = flags
        self._flats: list[Tensor] = []
        """One flat buffer for each dtype and device, with the flags at its end."""
        self._slots: list[_Slot] = []
        for group in groups:
            flat = _allocate_flat(group, flags)
            self._flats.append(flat)
            self._slots += _make_slots(group, flat)
        self._flags_sum = self._flats[0][-flags:]

    def begin(self) -> None:
        """Clears the sum before the first shard of a step."""
        for flat in self._flats:
            flat.zero_()
        for slot in self._slots:
            slot.parameter.grad = slot.grad

    def add_shard(self) -> None:
        """Adds a shard's gradients to the sum. Call after each shard's backward."""

    def reduce(
        self,
        flags: list[int],
        group: dist.ProcessGroup | None = None,
        node: Node = ALONE,
        *,
        statistics: Sequence[Tensor] = (),
    ) -> list[int] | None:
        """Sums over the gang into every `p.grad`, and returns the sum of all members' flags.

        `statistics` are further tensors to sum in place, not over the ranks of a node. Returns None
        if the step has to be repeated. Raises GroupLost or RuntimeError, on all ranks of a node.
        """
        self._collect()
        _write_flags(flags, self._flags_sum)
        with node.vote(self._flag_count) as numbers:
            _all_reduce((*self._flats, *statistics), group)
            for flag in self._flags_sum.tolist():
                numbers.append(round(flag))
        return numbers

    def _collect(self) -> None:
        # A loop that calls optimizer.zero_grad() itself has removed the views.
        for slot in self._slots:
            grad = slot.parameter.grad
            if grad is slot.grad:  # autograd has added to it in place
                continue
            if grad is not None:
                local = to_local(grad)
                if local.data_ptr() != slot.view.data_ptr():
                    slot.view.copy_(local)
            slot.parameter.grad = slot.grad


# Counters at the end of an exact sum: shards that are not finite, that do not fit, that are large.
_COUNTERS = 3


class ExactGradientSum(GradientSum):
    """Sums gradients as int64, so that the result does not depend on the order.

    `exponent` is state: a checkpoint and a newcomer need it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, flags: int) -> None:
        super().__init__(parameters, flags=flags)
        self.exponent = 0
        """Gradients of 2^exponent and more do not fit: the step is repeated with a larger one."""
        self._raise = 0
        """Amount by which the tries of this step have raised the exponent."""
        self._first_exponent = 0
        """The exponent before the first try of this step."""
        self.shard_digest = 0
        """Digest of the gradients that `add_shard` added last."""
        self.flags_of_try: list[int] = []
        """Sums of the flags of the last try, also of one that has to be repeated."""
        self._sums: list[Tensor] = []
        for flat in self._flats:
            total = torch.zeros(
                flat.numel() + _COUNTERS,
                dtype=torch.int64,
                device=flat.device,
            )
            self._sums.append(total)
        self._flags_sum = self._sums[0][-flags - _COUNTERS : -_COUNTERS]

    def begin(self) -> None:
        super().begin()
        for total in self._sums:
            total.zero_()

    def add_shard(self) -> None:
        self._collect()
        digest = 0
        for flat, total in zip(self._flats, self._sums, strict=True):
            gradients = flat[: -self._flag_count]
            values = gradients.double()
            largest = 0.0
            if len(values):
                largest = float(values.abs().max())
            is_finite = math.isfinite(largest)
            digest = fold(3 * digest + (digest_values(gradients) if is_finite else NOT_FINITE))
            fits = is_finite and largest < 2.0**self.exponent
            is_large = is_finite and largest >= 2.0 ** (self.exponent - HEADROOM)
            total[-3] += not is_finite
            total[-2] += is_finite and not fits
            total[-1] += is_large
            if fits:
                values.mul_(2.0 ** (BITS - self.exponent))
                total[: len(values)] += values.round_().long()
            flat.zero_()
        self.shard_digest = digest

    def restart_step(self) -> None:
        """Restores the exponent from before the tries of this step, since a gradient was wrong."""
        self.exponent = self._first_exponent
        self._raise = 0

    def reduce(
        self,
        flags: list[int],
        group: dist.ProcessGroup | None = None,
        node: Node = ALONE,
        *,
        statistics: Sequence[Tensor] = (),
    ) -> list[int] | None:
        _write_flags(flags, self._flags_sum)
        self._first_exponent = self.exponent - self._raise
        count = self._flag_count + _COUNTERS * len(self._sums)
        try:
            with node.vote(count) as numbers:
                _all_reduce((*self._sums, *statistics), group)
                numbers += self._flags_sum.tolist()
                for total in self._sums:
                    numbers += total[-_COUNTERS:].tolist()
        except (GroupLost, RuntimeError):
            # Other members may have had one try of this step less, and would continue with the
            # exponent before it.
            self.exponent -= self._raise
            self._raise = 0
            raise
        # The counters were summed with the gradients, so every member and every rank of a node
        # decides the same.
        flags = numbers[: self._flag_count]
        self.flags_of_try = flags
        counters = numbers[self._flag_count :]
        has_infinite = any(counters[0::_COUNTERS])
        has_overflow = any(counters[1::_COUNTERS])
        has_large = any(counters[2::_COUNTERS])
        if has_overflow:
            self.exponent += STEP_UP
            self._raise += STEP_UP
            return None
        self._raise = 0
        self._write_gradients(has_infinite=has_infinite)
        if not has_large:
            self.exponent -= STEP_DOWN
        return flags

    def _write_gradients(self, *, has_infinite: bool) -> None:
        for flat, total in zip(self._flats, self._sums, strict=True):
            if has_infinite:
                # The result of a plain sum, and the same on every member.
                flat.fill_(torch.nan)
                continue
            count = len(flat) - self._flag_count
            values = total[:count].double()
            flat[:count] = values.mul_(2.0 ** (self.exponent - BITS))


def _write_flags(flags: list[int], flags_sum: Tensor) -> None:
    if any(flags):  # a step starts with zeros
        flags_sum.copy_(torch.tensor(flags, dtype=flags_sum.dtype))


def _all_reduce(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    if group is None:  # a gang of one member
        return
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def _group_by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Groups parameters by dtype and device."""
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        key = (parameter.dtype, parameter.device)
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())


def _allocate_flat(group: list[nn.Parameter], flags: int) -> Tensor:
    length = flags
    for parameter in group:
        length += to_local(parameter).numel()
    return torch.zeros(
        length,
        dtype=group[0].dtype,
        device=group[0].device,
    )


def _make_slots(group: list[nn.Parameter], flat: Tensor) -> list[_Slot]:
    slots: list[_Slot] = []
    start = 0
    for parameter in group:
        local = to_local(parameter)
        end = start + local.numel()
        view = flat[start:end].view(local.shape)
        slot = _Slot(
            parameter=parameter,
            view=view,
            grad=_make_grad(parameter, view),
        )
        slots.append(slot)
        start = end
    return slots


def _make_grad(parameter: nn.Parameter, view: Tensor) -> Tensor:
    """Returns the view as a gradient of the parameter: FSDP2 adds to the memory of a DTensor."""
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
