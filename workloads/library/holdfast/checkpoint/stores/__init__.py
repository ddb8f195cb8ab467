"""Object stores, one module each, behind one protocol; the public names of this room."""

from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.opening import Retrying, client_of, open_storage
from holdfast.checkpoint.stores.storage import Stat, Storage, crc32c, numbers_below, put_new, read_object

__all__ = [
    "LocalStorage",
    "Retrying",
    "Stat",
    "Storage",
    "client_of",
    "crc32c",
    "numbers_below",
    "open_storage",
    "put_new",
    "read_object",
]
