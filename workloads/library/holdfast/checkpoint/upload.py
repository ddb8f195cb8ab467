"""Writing one rank's part of one save, and the order that the trainer sends for it.

The uploader process must start fast and stay small: no torch here.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.checkpoint.checksum import crc32c
from holdfast.checkpoint.errors import AlreadyExists, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest, Shard, TensorPart
from holdfast.checkpoint.names import random_hex
from holdfast.checkpoint.storage import Storage
from holdfast.contract import object_names

# Large enough to show the bandwidth and not the latency of one request.
PROBE_BYTES = 8 << 20

# The reason of a save that failed on the coordinator only because another rank's part did.
ANOTHER_RANK_FAILED = "another rank failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One save of one rank: the first `length` bytes of a staging memory hold its stream."""

    save: int
    memory: int = 0
    """Which of the staging memories."""
    length: int
    shard_bytes: int
    manifest: Manifest
    """Without shards: their checksums are computed by the uploader."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def decode(cls, body: dict[str, Any]) -> "Job":
        return cls(
            save=body["save"],
            memory=body["memory"],
            length=body["length"],
            shard_bytes=body["shard_bytes"],
            manifest=_manifest_of(body["manifest"]),
        )


def _manifest_of(body: dict[str, Any]) -> Manifest:
    tensors = tuple(
        TensorPart(**(t | {field: tuple(t[field]) for field in ("shape", "offset", "extent")})) for t in body["tensors"]
    )
    rest: dict[str, Any] = {"tensors": tensors, "shards": ()}
    return Manifest(**(body | rest))


def probe(storage: Storage, run: str) -> float:
    """Seconds that a small object takes to become durable. A kill leaves an attempt that retention removes."""
    # Under a name of the run, so that retention finds what a kill leaves behind.
    name = object_names.shard_object(run, 0, random_hex(6), 0, 0)
    data = memoryview(bytearray(PROBE_BYTES))
    began = time.monotonic()
    storage.put(name, data, crc32c(data))
    seconds = time.monotonic() - began
    storage.delete(name)
    return seconds


def upload(storage: Storage, memory: memoryview, job: Job, *, parallel: int) -> Manifest:
    """Shards in parallel, then the manifest, which says that they are all there."""
    failpoint("upload.begin")
    manifest = job.manifest

    def one(numbered: tuple[int, memoryview]) -> Shard:
        index, data = numbered
        checksum = crc32c(data)
        put_object(storage, manifest.shard_name(index), data, checksum)
        failpoint("upload.shard")
        return Shard(bytes=len(data), crc32c=checksum)

    # Checksums are computed in the same threads: one shard's sum beside another's request costs no time.
    with ThreadPoolExecutor(parallel, thread_name_prefix="shard") as pool:
        shards = tuple(pool.map(one, enumerate(_cut(memory[: job.length], job.shard_bytes))))
    manifest = replace(manifest, shards=shards)
    put_json(
        storage, object_names.manifest_object(manifest.run, manifest.step, manifest.attempt, manifest.rank), manifest
    )
    failpoint("upload.manifest")
    return manifest


def _cut(memory: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, len(memory), size):
        yield memory[start : start + size]


def put_json(storage: Storage, name: str, manifest: Manifest) -> None:
    data = bytearray(manifest.encode())
    put_object(storage, name, memoryview(data), crc32c(memoryview(data)))


def put_object(storage: Storage, name: str, data: memoryview, checksum: str) -> None:
    """Create-only. An object that is there already and holds these very bytes is our own earlier try."""
    try:
        storage.put(name, data, checksum)
    except AlreadyExists:
        # A request whose answer was lost is made again and meets its own object.
        if storage.stat(name).bytes == len(data):
            found = memoryview(bytearray(len(data)))
            storage.read_into(name, 0, found)
            if crc32c(found) == checksum:
                return
        raise StorageError(f"{name} exists with other content") from None
