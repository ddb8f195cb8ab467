"""Names and sizes of dtypes. PyTorch is imported only for a name that the table here lacks."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# An uploader and the command line have to start fast and stay small, so without PyTorch.
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1
    ),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def item_bytes(name: str) -> int | None:
    """Return the bytes of one element; None for a name that is no dtype of this PyTorch."""
    # Where PyTorch is loaded it decides: an older one may lack a dtype. For a dtype newer than the
    # table it is worth loading.
    if "torch" not in sys.modules and name in ITEM_BYTES:
        return ITEM_BYTES[name]
    dtype = dtype_of(name)
    return dtype.itemsize if dtype else None


def dtype_of(name: str) -> "torch.dtype | None":
    """Return the dtype of a name; None for a name that is no dtype of this PyTorch."""
    import torch

    attribute = getattr(torch, name, None) if name.isidentifier() else None
    return attribute if isinstance(attribute, torch.dtype) else None
