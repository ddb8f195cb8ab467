"""A folder that takes bytes at a limited rate, as a store of its own scheme.

    throttled:///FOLDER?mb_per_s=100

The rate holds for all requests of a process together. Reads are as fast as the folder's.
"""

import time
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.checkpoint.stores import LocalStorage

SCHEME = "throttled"
ENTRY_POINT = f"{SCHEME} = {__name__}:open_store"


class ThrottledStorage(LocalStorage):
    bytes_per_s: float
    _sent_at = 0.0
    """Time at which the bytes of all requests so far are sent."""

    def limit(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = Lock()

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        with self._lock:
            begins_at = max(self._sent_at, time.monotonic())
            self._sent_at = begins_at + len(data) / self.bytes_per_s
            ends_at = self._sent_at
        super().put(name, data, crc32c)
        time.sleep(max(0.0, ends_at - time.monotonic()))


def open_store(url: str, *, request_s: float) -> ThrottledStorage:
    parts = urlsplit(url)
    storage = ThrottledStorage.open(unquote(parts.path))
    (mb_per_s,) = parse_qs(parts.query)["mb_per_s"]
    storage.limit(1e6 * float(mb_per_s))
    return storage
