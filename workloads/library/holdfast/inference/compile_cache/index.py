"""The index of an archive of compiled kernels: its files, and the parts that hold their bytes.

An index has a digest of itself and of each part, and nothing of an archive is used before all of
them agree. A path stays below the folder of the caches.
"""

# Why it is so: infra/decisions/0201.

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from holdfast.support.errors import HoldfastError
from holdfast.vocabulary.serving import COMPILER_FOLDERS

SCHEMA = "holdfast.compile-cache/1"
CACHES = tuple(COMPILER_FOLDERS.values())
MAX_BYTES = 1 << 30
MAX_FILES = 20_000
MAX_INDEX_BYTES = 8 << 20
PART_BYTES = 8 << 20
_PART = re.compile("[0-9a-f]{16}/[0-9]{4}")
_DIGEST = re.compile("[0-9a-f]{64}")
_MAX_PATH = 1_000


class DamagedArchive(HoldfastError):
    """The archive is not used; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    path: str
    """Path below the folder of the caches."""
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    """Name below the key."""
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    files: tuple[CachedFile, ...]
    parts: tuple[Part, ...]

    @property
    def total_bytes(self) -> int:
        return count_bytes(self.files)

    def encode(self) -> bytes:
        document = {
            "schema": SCHEMA,
            "files": [[file.path, file.bytes] for file in self.files],
            "parts": [[part.name, part.bytes, part.sha256] for part in self.parts],
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        return sha256(text).hexdigest().encode() + b"\n" + text


def count_bytes(entries: Iterable[CachedFile | Part]) -> int:
    return sum(entry.bytes for entry in entries)


def is_allowed_path(path: str) -> bool:
    """Return whether a file of this path lies in the folder of a compiler, and has a plain name."""
    names = path.split("/")
    if len(path) > _MAX_PATH or len(names) < 2 or names[0] not in CACHES:
        return False
    return path.isprintable() and not {"", ".", ".."} & set(names)


def decode(data: bytes) -> Index:
    """Read an index. Raises DamagedArchive."""
    digest, _, text = data.partition(b"\n")
    _require(sha256(text).hexdigest().encode() == digest, "its digest is another one")
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedArchive(f"no JSON: {error}") from error
    _require(isinstance(document, dict), "no object")
    _require(document.get("schema") == SCHEMA, "another schema")
    index = Index(
        files=tuple(_decode_file(entry) for entry in _read_list(document, "files")),
        parts=tuple(_decode_part(entry) for entry in _read_list(document, "parts")),
    )
    _require(0 < len(index.files) <= MAX_FILES, f"{len(index.files)} files")
    size = index.total_bytes
    _require(size <= MAX_BYTES, f"{size} bytes")
    _require(size == count_bytes(index.parts), "files and parts have other sizes")
    return index


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise DamagedArchive(f"index: {reason}")


def _read_list(document: dict[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    _require(isinstance(value, list), f"{key} is no list")
    return value  # pyright: ignore[reportReturnType]


def _decode_file(entry: Any) -> CachedFile:
    match entry:
        case [str(path), int(size)] if is_allowed_path(path) and size >= 0:
            return CachedFile(path=path, bytes=size)
        case _:
            raise DamagedArchive(f"index: no file of a cache: {str(entry)[:200]!r}")


def _decode_part(entry: Any) -> Part:
    match entry:
        case [str(name), int(size), str(digest)] if (
            _PART.fullmatch(name) and 0 < size <= PART_BYTES and _DIGEST.fullmatch(digest)
        ):
            return Part(
                name=name,
                bytes=size,
                sha256=digest,
            )
        case _:
            raise DamagedArchive(f"index: no part: {str(entry)[:200]!r}")
