"""Find tensors of the state that share memory, such as tied weights, and fill each by itself.

A checkpoint may hold different values for them: tied weights here, untied ones at the save. Filled
in place, the last one would win without an error. So each is read into memory of its own, copied
to the shared memory, and compared there.
"""

from typing import Any

import torch

from holdfast.checkpoint.restore.comparison import same_bits
from holdfast.checkpoint.state.tensors import Tensors, to_local
from holdfast.support.errors import InputError

Span = tuple[str, int, int, str]
"""A device, the addresses of the first byte and just past the last, and a tensor's key."""


class SharedMemory:
    """The tensors of a state that overlap others in memory."""

    def __init__(self, tensors: Tensors) -> None:
        """Takes the live tensors out of `tensors`, and puts memory to read into in their place."""
        self._groups: list[tuple[Tensors, bool]] = []
        """Live tensors that overlap, and whether they have the very same memory."""
        for keys in _find_overlaps(tensors):
            group = {key: tensors[key] for key in keys}
            is_same = len({_layout(tensor) for tensor in group.values()}) == 1
            self._groups.append((group, is_same))
            # Of tensors with the same memory, one is read in place, and the others must equal it.
            for key in keys[1:] if is_same else keys:
                tensors[key] = torch.empty_like(group[key])

    def merge(self, tensors: Tensors) -> None:
        """Copy what was read to the live tensors, and put these back into `tensors`.

        Raises InputError if the shared memory cannot hold all of the values.
        """
        for group, is_same in self._groups:
            for key, live in group.items():
                if not is_same:
                    to_local(live).copy_(to_local(tensors[key]))
            for key, live in group.items():
                if not same_bits(live, tensors[key]):
                    raise _tie_error([*group])
            tensors |= group


def _layout(tensor: torch.Tensor) -> Any:
    local = to_local(tensor)
    return local.data_ptr(), local.dtype, tuple(local.shape), local.stride()


def _find_overlaps(tensors: Tensors) -> list[list[str]]:
    """Return the keys of tensors that overlap, in groups of at least two."""
    spans: list[Span] = []
    for key, tensor in tensors.items():
        local = to_local(tensor)
        if not local.numel():
            continue
        elements = 1
        for size, stride in zip(local.shape, local.stride(), strict=True):
            elements += (size - 1) * stride
        start = local.data_ptr()
        end = start + elements * local.element_size()
        spans.append((str(local.device), start, end, key))
    groups: list[list[str]] = []
    device = ""
    reach = 0
    for span_device, start, end, key in sorted(spans):
        if span_device == device and start < reach:
            groups[-1].append(key)
            reach = max(reach, end)
        else:
            groups.append([key])
            device = span_device
            reach = end
    return [group for group in groups if len(group) > 1]


def _tie_error(keys: list[str]) -> InputError:
    return InputError(
        "checkpoint was written by another model or state",
        got=f"{', '.join(keys[:3])} share memory here, and have different values in the checkpoint",
        allowed="weights that are tied, or not, as they were at the save",
        fix="untie them as in the program that saved, or choose another run name",
    )
