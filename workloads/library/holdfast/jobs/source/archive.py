"""Packs a source folder into an archive that is the same for the same content."""

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.jobs.source import folder
from holdfast.jobs.source.folder import SourceFile
from holdfast.support.errors import InputError

# What a ConfigMap holds.
MAX_CONFIG_MAP_BYTES = 1 << 20
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\\n|\s)*[A-Za-z0-9+/=]{48}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    digest: str
    """SHA-256 of names, modes and content, in hex; independent of the compression."""
    data: bytes
    """The packed files: a tar archive, compressed with gzip."""
    file_count: int
    size: int
    """Size of the unpacked archive in bytes."""

    @property
    def fits_config_map(self) -> bool:
        return len(self.data) <= MAX_CONFIG_MAP_BYTES

    def __str__(self) -> str:
        kibibytes = -(-len(self.data) // 1024)
        return f"{self.file_count} files, {kibibytes} KiB packed, sha256:{self.digest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """An archive that must be in a bucket before its job starts."""

    url: str
    data: bytes


def pack(root: Path, include: Sequence[str] = ()) -> Archive:
    """Pack the files of a folder. Raises InputError as `folder.list_files` does.

    Times, owners and the order on the disk do not matter: a checkout on another machine packs to
    the same digest.
    """
    files = folder.list_files(root, include)
    named = tuple(Path(name).as_posix() for name in include)
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream,
        mode="w",
        format=tarfile.PAX_FORMAT,
    ) as tar:
        for file in files:
            _add(tar, file, named)
    unpacked = stream.getvalue()
    return Archive(
        digest=hashlib.sha256(unpacked).hexdigest(),
        data=gzip.compress(unpacked, 9, mtime=0),
        file_count=len(files),
        size=len(unpacked),
    )


def _add(tar: tarfile.TarFile, file: SourceFile, named: Sequence[str]) -> None:
    member = tarfile.TarInfo(file.name)  # with the time 0 and the owner 0
    if file.target:
        member.type = tarfile.SYMTYPE
        member.linkname = file.target
        tar.addfile(member)
        return
    content = _read(file)
    if _KEY.search(content) and not _is_named(file, named):
        raise folder.make_secret_error(file.name, "it holds a private key")
    member.mode = 0o755 if file.is_executable else 0o644
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _is_named(file: SourceFile, named: Sequence[str]) -> bool:
    """Tell whether the user named the file, or a folder above it."""
    return any(file.name == name or file.name.startswith(f"{name}/") for name in named)


def _read(file: SourceFile) -> bytes:
    try:
        with file.path.open("rb") as opened:
            # One more than is allowed: a file may grow while it is read.
            content = opened.read(folder.MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            "source: a file cannot be read",
            got=f"{file.name}: {error.strerror}",
            allowed="files that you may read",
            fix="change its rights, or add it to .gitignore",
        ) from error
    if len(content) > folder.MAX_BYTES:
        raise InputError(
            "source: a file grows while it is read",
            got=file.name,
            allowed=f"{folder.MAX_BYTES >> 20} MiB of code",
            fix="add it to .gitignore",
        )
    return content
