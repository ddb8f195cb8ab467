"""Bytes of an element by the name of its dtype, known without PyTorch: an uploader has to start fast and stay small."""

import sys
from importlib import import_module

ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def item_bytes(name: str) -> int | None:
    """None for a name that is no dtype of this PyTorch."""
    # Where PyTorch is loaded it decides: an older one may lack a dtype. A dtype newer than the table is worth a start.
    if "torch" not in sys.modules and name in ITEM_BYTES:
        return ITEM_BYTES[name]
    found = import_module("holdfast.checkpoint.pieces").dtype_of(name)
    return found.itemsize if found else None
