"""Fills the folder of the caches from a bucket, before the engine starts.

Whatever goes wrong here costs the time of compiling, which is the time of a start without a cache.
"""

import shutil
import threading
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from holdfast.checkpoint.errors import NotFound, StorageError
from holdfast.checkpoint.stores import Storage, open_storage, read_object
from holdfast.inference.compile_cache.index import (
    CACHES,
    MAX_INDEX_BYTES,
    CachedFile,
    DamagedArchive,
    Index,
    Part,
    decode,
)
from holdfast.runtime import logs
from holdfast.support.errors import InputError
from holdfast.vocabulary.serving import CACHE_INCOMING, CACHE_PROVEN, CACHE_UNTRIED

INDEX = "index"
_REQUEST_S = 20.0


def fetch(
    url: str,
    key: str,
    folder: Path,
    within_s: float,
) -> None:
    """Restore the archive of a key, or leave the caches empty.

    Takes at most about `within_s`: the engine waits for it. The process must end after it, since a
    request may still be under way. If it was killed before, as by the limit of its memory, it does
    not try again: the engine would never start.
    """
    obstacle = _begin_try(folder)
    if obstacle:
        _warn(key, obstacle)
        return
    thread = threading.Thread(
        target=_try_to_restore,
        args=(url, key, folder),
        name="restore",
        daemon=True,
    )
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        _warn(key, f"not read within {within_s:g} s")


def _begin_try(folder: Path) -> str:
    """Mark the folder as untried; return why nothing can be fetched, or an empty text."""
    untried = folder / CACHE_UNTRIED
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CACHE_PROVEN).unlink(missing_ok=True)
        if untried.exists():
            return "the last try was killed"
        untried.mkdir()
    except OSError as error:
        return str(error)
    return ""


def _try_to_restore(url: str, key: str, folder: Path) -> None:
    try:
        index = restore(open_storage(url, request_s=_REQUEST_S), key, folder)
    except NotFound:
        logs.info("compile-cache", "nothing is stored: the engine compiles", key=key)
    except InputError as error:
        _warn(key, f"{error.what}: {error.got}")
    except (DamagedArchive, StorageError, EOFError, OSError) as error:
        _warn(key, str(error))
    else:
        logs.info(
            "compile-cache",
            f"{len(index.files)} files restored",
            key=key,
            bytes=index.total_bytes,
        )


def _warn(key: str, reason: str) -> None:
    logs.warning("compile-cache", f"not used, the engine compiles: {reason}", key=key)


def restore(storage: Storage, key: str, folder: Path) -> Index:
    """Restore the archive of a key below `folder`, whole or not at all.

    Raises NotFound without an archive, DamagedArchive, EOFError, and StorageError.
    """
    index = decode(read_object(storage, f"{key}/{INDEX}", limit=MAX_INDEX_BYTES))
    staging = folder / CACHE_INCOMING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        _write_files(_read_parts(storage, key, index.parts), index.files, staging)
        for cache in CACHES:
            shutil.rmtree(folder / cache, ignore_errors=True)
            if (staging / cache).exists():
                (staging / cache).rename(folder / cache)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return index


def _read_parts(storage: Storage, key: str, parts: Sequence[Part]) -> Iterator[memoryview]:
    for part in parts:
        data = memoryview(bytearray(part.bytes))
        try:
            storage.read_into(f"{key}/{part.name}", 0, data)
        except NotFound as error:
            raise DamagedArchive(f"{part.name} is missing") from error
        if sha256(data).hexdigest() != part.sha256:
            raise DamagedArchive(f"{part.name}: its digest is another one")
        yield data


def _write_files(
    pieces: Iterator[memoryview],
    files: Sequence[CachedFile],
    folder: Path,
) -> None:
    """Write the files, which together are as long as the pieces."""
    piece = memoryview(b"")
    for entry in files:
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        missing = entry.bytes
        # Only new files: two entries of one path are an error, and there is no link to follow.
        with path.open("xb") as file:
            while missing:
                if not len(piece):
                    piece = next(pieces)
                end = min(missing, len(piece))
                file.write(piece[:end])
                piece = piece[end:]
                missing -= end
