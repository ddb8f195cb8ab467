"""What PyTorch does not say of a tensor: whether it can be stored, this rank's memory of it, and its dtype by name."""

import ctypes
import sys
from typing import TYPE_CHECKING, cast

import torch

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


def memory_at(tensor: torch.Tensor) -> int:
    """Address of the memory behind it, of this rank's part for a DTensor; -1 where it has none of its own."""
    try:
        return local_of(tensor).untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a subclass that wraps other tensors
        return -1


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense, contiguous CPU tensor, writable and not copied; they keep the tensor alive.

    Not by way of NumPy, which PyTorch does not bring along.
    """
    count = tensor.numel() * tensor.element_size()
    array = (ctypes.c_ubyte * count).from_address(tensor.data_ptr()) if count else (ctypes.c_ubyte * 0)()
    array.tensor = tensor  # pyright: ignore[reportAttributeAccessIssue]
    return memoryview(array).cast("B")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    """None for a name that is no dtype of this PyTorch."""
    found = getattr(torch, name, None) if name.isidentifier() else None
    return found if isinstance(found, torch.dtype) else None
