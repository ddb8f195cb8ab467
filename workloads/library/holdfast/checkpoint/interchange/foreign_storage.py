"""Present a checkpoint of another format as a store of this library, for all that reads stores.

Its commit and manifest exist in memory only. The bytes are those of the files, in shards that are
read by ranges: restoring, importing and exporting need no copy of it.

Decision: infra/decisions/0140.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoint.errors import Damaged, Denied, NotFound
from holdfast.checkpoint.format import (
    Commit,
    Manifest,
    Shard,
    TensorPart,
    digest_manifest,
    hex_digest,
)
from holdfast.checkpoint.format.decoding import parse_manifest
from holdfast.checkpoint.format.validation import NOTES_KEY, check_manifests
from holdfast.checkpoint.interchange.safetensors_source import is_safetensors, read_safetensors
from holdfast.checkpoint.interchange.source import (
    READ_BYTES,
    Source,
    SourcePart,
    gather,
    make_source_error,
    read_part,
)
from holdfast.checkpoint.interchange.torch_checkpointing_source import (
    is_torch_checkpointing,
    read_torch_checkpointing,
)
from holdfast.checkpoint.interchange.torch_source import (
    is_dcp,
    is_torch_file,
    read_dcp,
    read_torch_file,
    refuse_old_file,
)
from holdfast.checkpoint.state.tensors import ALIGN
from holdfast.checkpoint.stores.storage import Crc32c, Stat
from holdfast.support import object_names

SHARD_BYTES = 64 << 20
RUN = "source"


def detect_source(path: Path, entry: str = "model") -> Source:
    """Return the checkpoint at a path. Raises InputError for a path that holds none."""
    if is_dcp(path):
        return read_dcp(path, entry)
    if is_torch_checkpointing(path):
        return read_torch_checkpointing(path, entry)
    if is_safetensors(path):
        return read_safetensors(path, entry)
    if is_torch_file(path):
        return read_torch_file(path, entry)
    if path.is_file():
        raise refuse_old_file(path)
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir())
        raise make_source_error(
            path,
            f"a folder of {', '.join(names[:3]) or 'nothing'}, without an index",
            "name one file of it, or copy the index into it that was written first: .metadata,"
            " metadata.pkl or model.safetensors.index.json",
        )
    raise make_source_error(path, "no such checkpoint", "check the path")


class ForeignStorage:
    """A store with one run, `source`, and one step."""

    read_bytes = READ_BYTES

    def __init__(
        self,
        source: Source,
        step: int = 0,
        *,
        run: str = RUN,
    ) -> None:
        """Reads every byte once for its checksum. Raises InputError if a tensor is not whole."""
        self._parts: list[tuple[int, SourcePart]] = []
        self._gathered: tuple[SourcePart | None, memoryview] = (None, memoryview(b""))
        """The newest part with strides, whose bytes cannot be read by ranges."""
        tensors: list[TensorPart] = []
        length = 0
        for part in source.parts:
            self._parts.append((length, part))
            tensors.append(
                TensorPart(
                    key=part.key,
                    dtype=part.dtype,
                    shape=part.shape,
                    offset=part.offset,
                    extent=part.extent,
                    at=length,
                    bytes=part.bytes,
                )
            )
            length += -(-part.bytes // ALIGN) * ALIGN
        self._length = length
        starts = [(part.key, part.start) for part in source.parts]
        description = repr((source.kind, starts))
        attempt = hex_digest(description.encode())[:12]
        self.manifest = Manifest(
            run=run,
            step=step,
            attempt=attempt,
            rank=0,
            world_size=1,
            shards=tuple(self._checksum(source)),
            tensors=tuple(tensors),
            values=source.values | {NOTES_KEY: {}},
        )
        encoded = self.manifest.encode()
        try:
            check_manifests([parse_manifest(encoded)])
        except Damaged as error:
            raise make_source_error(source.path, str(error)) from error
        self.commit = Commit(
            run=run,
            step=step,
            attempt=attempt,
            world_size=1,
            total_bytes=self._length,
            created=int(time.time()),
            manifests=(digest_manifest(encoded),),
        )
        self._objects = {
            object_names.commit_object(run, step): self.commit.encode(),
            self.manifest.name: encoded,
        }

    def _checksum(self, source: Source) -> Iterator[Shard]:
        buffer = memoryview(bytearray(READ_BYTES))
        for start in range(0, self._length, SHARD_BYTES):
            end = min(start + SHARD_BYTES, self._length)
            checksum = Crc32c()
            for position in range(start, end, READ_BYTES):
                chunk = buffer[: min(READ_BYTES, end - position)]
                try:
                    self._read_stream(position, chunk)
                except EOFError as error:
                    raise make_source_error(source.path, str(error)) from error
                checksum.extend(chunk)
            yield Shard(bytes=end - start, crc32c=checksum.hex())

    def _read_stream(self, start: int, into: memoryview) -> None:
        into[:] = bytes(len(into))
        end = start + len(into)
        first = bisect_right(self._parts, start, key=lambda item: item[0]) - 1
        for part_start, part in self._parts[max(0, first) :]:
            if part_start >= end:
                break
            low = max(start, part_start)
            high = min(end, part_start + part.bytes)
            if low < high:
                target = into[low - start : high - start]
                self._read_part(part, low - part_start, target)

    def _read_part(self, part: SourcePart, start: int, into: memoryview) -> None:
        if part.strides is None:
            read_part(part, start, into)
            return
        # One read of the attribute: threads may read other parts at the same time.
        gathered_part, data = self._gathered
        if gathered_part is not part:
            data = gather(part)
            self._gathered = (part, data)
        into[:] = data[start : start + len(into)]

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        if name in self._objects:
            data = self._objects[name]
            into[:] = data[start : start + len(into)]
            return
        for index in range(len(self.manifest.shards)):
            if self.manifest.shard_name(index) == name:
                self._read_stream(index * SHARD_BYTES + start, into)
                return
        raise NotFound(name)

    def list(self, prefix: str) -> Iterator[Stat]:
        for name in self._objects:
            if not prefix or name.startswith(f"{prefix}/"):
                yield self.stat(name)
        for index in range(len(self.manifest.shards)):
            name = self.manifest.shard_name(index)
            if not prefix or name.startswith(f"{prefix}/"):
                yield self.stat(name)

    def stat(self, name: str) -> Stat:
        if name in self._objects:
            size = len(self._objects[name])
            return Stat(
                name=name,
                bytes=size,
                modified=float(self.commit.created),
            )
        for index, shard in enumerate(self.manifest.shards):
            if self.manifest.shard_name(index) == name:
                return Stat(
                    name=name,
                    bytes=shard.bytes,
                    modified=float(self.commit.created),
                )
        raise NotFound(name)

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        del data, crc32c
        raise Denied(f"{name}: this checkpoint is only read")

    def delete(self, name: str) -> None:
        raise Denied(f"{name}: this checkpoint is only read")

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        del target, replace
        raise Denied(f"{source}: this checkpoint is only read")
