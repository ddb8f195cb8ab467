"""Store shards of frozen parameters once for a run, under the digest of their bytes.

A later checkpoint names the same object again and writes nothing. The first shard that changes
although its parameters are frozen, as in an average that is kept by hand, is stored like any other
from then on.

Decision: infra/decisions/0139.
"""

import hashlib

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.format import Shard
from holdfast.checkpoint.stores.storage import Storage, crc32c, put_object
from holdfast.support import object_names

MIN_BYTES = 1 << 20
"""Less than this is not worth an object of its own."""
_READ_BYTES = 8 << 20


class SharedShards:
    """The shards of one rank's frozen parameters, as the newest save stored them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._newest: dict[int, Shard] = {}
        self._changing: set[int] = set()
        self._stored: dict[int, int] = {}

    def take_byte_count(self) -> int:
        """Return how many bytes were written since the last call."""
        stored = self._stored
        self._stored = {}
        return sum(stored.values())

    def store(
        self,
        run: str,
        index: int,
        data: memoryview,
        checksum: str,
    ) -> Shard | None:
        """Store a shard unless the store has it. Returns None for one that is not to be shared.

        Raises StorageError.
        """
        newest = self._newest.get(index)
        is_same_place = newest is not None and newest.bytes == len(data)
        if newest is not None and is_same_place and newest.crc32c == checksum:
            return newest
        if is_same_place or index in self._changing:
            self._changing.add(index)
            self._newest.pop(index, None)
            return None
        shard = Shard(
            bytes=len(data),
            crc32c=checksum,
            sha256=hashlib.sha256(data).hexdigest(),
        )
        name = object_names.common_object(run, shard.sha256)
        if not self._is_stored(name, shard):
            put_object(self._storage, name, data, checksum)
            self._stored[index] = len(data)
        self._newest[index] = shard
        return shard

    def _is_stored(self, name: str, shard: Shard) -> bool:
        """Return whether the store has the very bytes. A damaged object is deleted."""
        try:
            stat = self._storage.stat(name)
        except NotFound:
            return False
        # An earlier start wrote the object. If it was damaged since, every later checkpoint that
        # names it would be damaged too.
        stored_sum = stat.crc32c
        if stat.bytes == shard.bytes and not stored_sum:
            data = memoryview(bytearray(shard.bytes))
            for start in range(0, shard.bytes, _READ_BYTES):
                self._storage.read_into(name, start, data[start : start + _READ_BYTES])
            stored_sum = crc32c(data)
        if stat.bytes == shard.bytes and stored_sum == shard.crc32c:
            return True
        self._storage.delete(name)
        return False
