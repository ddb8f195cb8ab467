"""Which tensors have bytes of their own that can be stored and filled again; all others are refused by name."""

import torch

from holdfast.checkpoint.sharded import local_of
from holdfast.contract.errors import InputError

# PyTorch names these and cannot copy them.
NO_KERNEL = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)} | {"quint2x4", "quint4x2"}


def storable(tensor: torch.Tensor, key: str) -> torch.Tensor:
    """The live tensor without its graph. Raises InputError."""
    # Before anything else is asked of it: a lazy parameter raises at every question but this one.
    if torch.nn.parameter.is_lazy(tensor):
        raise _refused(key, "a parameter without a shape", "run one batch through the lazy module before the start")
    if type(tensor).__name__ == "ShardedTensor":
        raise _refused(key, "a ShardedTensor of FSDP1", "give FSDP a device_mesh, or use fully_shard (FSDP2): DTensors")
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        kind = "nested, " if tensor.is_nested else "quantized, " if tensor.is_quantized else ""
        got = f"layout {tensor.layout}, {kind}device {tensor.device}"
        raise _refused(key, got, "convert it to a dense tensor, or leave it out of the state")
    tensor = tensor.detach()
    local = local_of(tensor)
    # A copy would unwrap it, and what comes back would be another tensor than the one that was saved.
    if hasattr(type(local), "__tensor_flatten__"):
        raise _refused(key, f"a {type(local).__name__}, which wraps other tensors", "save the tensors that it wraps")
    if str(local.dtype).removeprefix("torch.") in NO_KERNEL:
        raise _refused(key, f"{local.dtype}, which PyTorch cannot copy", "save its .view(torch.uint8)")
    if local.is_conj() or local.is_neg():
        raise _refused(key, "a conjugated or negated view", "save its .resolve_conj() or .resolve_neg()")
    if overlaps_itself(local):
        raise _refused(key, f"an expanded tensor, strides {local.stride()}", "save its .contiguous()")
    return tensor


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may be one memory, which cannot be filled in parallel pieces."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _refused(key: str, got: str, fix: str) -> InputError:
    return InputError(
        f"tensor {key} has no plain memory to store",
        got=got,
        allowed="dense tensors on a real device, each element with memory of its own",
        fix=fix,
    )
