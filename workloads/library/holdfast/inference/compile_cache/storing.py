"""Writes the caches of an engine to a bucket once it is ready, unless another replica was first."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG

from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError
from holdfast.checkpoint.stores import Storage, crc32c, open_storage, put_new
from holdfast.inference.compile_cache.index import (
    CACHES,
    MAX_BYTES,
    MAX_FILES,
    MAX_INDEX_BYTES,
    PART_BYTES,
    CachedFile,
    Index,
    Part,
    count_bytes,
    is_allowed_path,
)
from holdfast.inference.compile_cache.restoring import INDEX
from holdfast.runtime import logs
from holdfast.support.errors import HoldfastError, InputError
from holdfast.vocabulary.serving import CACHE_PROVEN

TRIES = 5
_PIECE_BYTES = 1 << 20
_POLL_S = 1.0


class Changing(HoldfastError):
    """The engine still writes; a file may be torn."""


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Stores the caches of one engine."""

    url: str
    key: str
    folder: Path
    settle_s: float
    """Time in which no file may change before the caches are stored."""
    is_ready: Callable[[], bool]
    wait: Callable[[float], bool]
    """Waits for some seconds; returns True once the process is to end."""

    def run(self) -> None:
        """Store the caches once; returns early if the process is to end.

        A process that was killed while it stored does not try again: the pod is ready only while
        this container runs.
        """
        proven = self.folder / CACHE_PROVEN
        if proven.exists():
            return
        while not self.is_ready():
            if self.wait(_POLL_S):
                return
        try:
            # From now on a restarted engine keeps the caches: they are not why it ended.
            proven.touch()
            self._store()
        except InputError as error:
            _warn(self.key, f"{error.what}: {error.got}")
        except (Changing, StorageError, OSError) as error:
            _warn(self.key, str(error))

    def _store(self) -> None:
        storage = open_storage(self.url)
        if _is_stored(storage, self.key):
            logs.info("compile-cache", "already stored", key=self.key)
            return
        for _ in range(TRIES):
            files = list_files(self.folder)
            if self.wait(self.settle_s):
                return
            with suppress(Changing):
                store(storage, self.key, self.folder, files)
                return
        raise Changing(f"the files changed in each of {TRIES} tries")


def _warn(key: str, reason: str) -> None:
    logs.warning("compile-cache", f"not stored: {reason}", key=key)


def _is_stored(storage: Storage, key: str) -> bool:
    try:
        storage.stat(f"{key}/{INDEX}")
    except NotFound:
        return False
    return True


def list_files(folder: Path) -> dict[CachedFile, int]:
    """Return the files of all caches with the times of their last change; links are left out."""
    files: dict[CachedFile, int] = {}
    for cache in CACHES:
        for parent, _, names in os.walk(folder / cache):
            for name in names:
                path = Path(parent) / name
                relative = path.relative_to(folder).as_posix()
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    if S_ISREG(status.st_mode) and is_allowed_path(relative):
                        entry = CachedFile(path=relative, bytes=status.st_size)
                        files[entry] = status.st_mtime_ns
    return files


def store(
    storage: Storage,
    key: str,
    folder: Path,
    files: dict[CachedFile, int],
) -> None:
    """Store the files as the archive of a key, unless it has one.

    Raises Changing if they are not those of `files` any more.
    """
    entries = sorted(files, key=lambda entry: entry.path)
    size = count_bytes(entries)
    if not entries:
        _warn(key, "the engine compiled nothing")
        return
    if size > MAX_BYTES or len(entries) > MAX_FILES:
        allowed = f"at most {MAX_FILES} and {MAX_BYTES}"
        _warn(key, f"{len(entries)} files of {size} bytes, {allowed}")
        return
    _require_unchanged(folder, files)
    # A name of its own: of two replicas that start together each writes its parts.
    attempt = os.urandom(8).hex()
    parts: list[Part] = []
    try:
        for data in _cut(_read_files(folder, entries)):
            part = Part(
                name=f"{attempt}/{len(parts):04}",
                bytes=len(data),
                sha256=sha256(data).hexdigest(),
            )
            storage.put(f"{key}/{part.name}", memoryview(data), crc32c(memoryview(data)))
            parts.append(part)
        _require_unchanged(folder, files)
        index = Index(files=tuple(entries), parts=tuple(parts)).encode()
        if len(index) > MAX_INDEX_BYTES:
            raise StorageError(f"the names of its files are too long: {len(index)} bytes")
        put_new(storage, f"{key}/{INDEX}", index)
    except AlreadyExists:
        _delete(storage, key, parts)
        logs.info("compile-cache", "another replica stored it first", key=key)
        return
    except (Changing, StorageError, OSError):
        _delete(storage, key, parts)
        raise
    logs.info("compile-cache", f"{len(entries)} files stored", key=key, bytes=size)


def _require_unchanged(folder: Path, files: dict[CachedFile, int]) -> None:
    if list_files(folder) != files:
        raise Changing("the engine still writes its caches")


def _delete(storage: Storage, key: str, parts: Sequence[Part]) -> None:
    """Delete the parts that no index names. An account that may only create leaves them."""
    with suppress(StorageError):
        for part in parts:
            storage.delete(f"{key}/{part.name}")


def _read_files(folder: Path, entries: Sequence[CachedFile]) -> Iterator[bytes]:
    for entry in entries:
        missing = entry.bytes
        try:
            descriptor = os.open(folder / entry.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise Changing(f"{entry.path} is gone") from error
        with os.fdopen(descriptor, "rb") as file:
            while missing:
                piece = file.read(min(missing, _PIECE_BYTES))
                if not piece:
                    raise Changing(f"{entry.path} became shorter")
                missing -= len(piece)
                yield piece


def _cut(pieces: Iterable[bytes]) -> Iterator[bytearray]:
    """Yield the bytes of all pieces in parts of PART_BYTES, the last one shorter."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART_BYTES:
            yield part[:PART_BYTES]
            part = part[PART_BYTES:]
    if part:
        yield part
