"""Object stores, one module each, behind one protocol; the public names of this room."""

from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.opening import open_storage, reliable_storage
from holdfast.checkpoint.stores.retrying import Retrying
from holdfast.checkpoint.stores.storage import Stat, Storage, crc32c, read_object

__all__ = ["LocalStorage", "Retrying", "Stat", "Storage", "crc32c", "open_storage", "read_object", "reliable_storage"]
