"""After a restore: do the user's objects hold what was verified?

A checkpoint that was read in full and loaded by a load_state_dict() that keeps nothing, or that keeps something
else, is a fresh start that nobody sees. So the live state is captured once more and compared bit by bit.
"""

from collections.abc import Mapping

import torch

from holdfast.checkpoint.pieces import memory_at
from holdfast.checkpoint.sharded import local_of
from holdfast.contract.errors import InputError


def versions(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each was written through PyTorch; -1 where nobody counts."""
    return {key: _version(local_of(tensor)) for key, tensor in tensors.items()}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def compare(
    loaded: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor], before: Mapping[str, int]
) -> list[str]:
    """Keys whose memory was filled and then written again, to be compared with a second reading.

    `before`: versions of `loaded` when its bytes were verified. Raises InputError for a key that holds other bits.
    """
    again: list[str] = []
    for key, tensor in loaded.items():
        if key not in live:
            raise not_restored(key)
        if memory_at(live[key]) != memory_at(tensor):
            check_same(key, live[key], tensor)
        # The very memory that was verified: only somebody's later write can have changed it.
        elif before[key] < 0 or before[key] != _version(local_of(live[key])):
            again.append(key)
    return again


def check_same(key: str, live: torch.Tensor, truth: torch.Tensor) -> None:
    a, b = local_of(live), local_of(truth)
    if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(_bits(a), _bits(b).to(a.device)):
        raise not_restored(key)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: a NaN equals no NaN, and -0.0 equals 0.0.
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def not_restored(key: str) -> InputError:
    return InputError(
        "state was not restored: it holds other bits than the checkpoint that was loaded into it",
        got=key,
        allowed="a load_state_dict() after which state_dict() gives back what was loaded",
        fix="mend load_state_dict() (or set_extra_state) of this entry, or leave the entry out of the state",
    )
