"""Read an index that other libraries pickle, without running what a pickle may hold.

A pickle names functions to call. This reader resolves a closed list of classes of data, and refuses
the file at any other name before it is called. Nothing else in this library reads pickles.
"""

import io
import pickle  # noqa: TID251  # the formats of others are pickles; see above
from collections.abc import Collection
from typing import Any

import torch

_METADATA = "torch.distributed.checkpoint.metadata"
UnpicklingError = pickle.UnpicklingError
ClassNames = Collection[tuple[str, str]]
"""Modules and names of classes."""
PLAIN: ClassNames = ()
"""No class: a pickle of dicts, lists, texts and numbers."""
DCP: ClassNames = {
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("torch", "device"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
}


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: ClassNames) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (is_dtype and self._allowed) or (module, name) in self._allowed:
            return super().find_class(module, name)
        raise UnpicklingError(f"{module}.{name} is not part of an index")


def read_index(data: bytes, allowed: ClassNames) -> Any:
    """Return the object of a pickle that names no class but the allowed ones.

    Raises UnpicklingError, and what a malformed pickle raises.
    """
    return _IndexUnpickler(data, allowed).load()
