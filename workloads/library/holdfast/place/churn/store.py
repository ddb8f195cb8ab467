"""Where the churn history lies: a folder or a bucket."""

import fcntl
import hashlib
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.contract.errors import InputError, Unjudged
from holdfast.place.churn.history import Store

GCS = "gs://"


def open_store(url: str) -> Store:
    if not url.startswith(GCS):
        if "://" in url:
            allowed = "a folder, or gs://BUCKET/FOLDER"
            raise InputError("--history is of no known kind", got=url, allowed=allowed, fix="write it so")
        return Folder(Path(url))
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage

    bucket, _, prefix = url.removeprefix(GCS).partition("/")
    try:
        return Bucket(storage.Client().bucket(bucket), f"{prefix.strip('/')}/".removeprefix("/"))
    except DefaultCredentialsError as error:
        raise Unjudged(f"no credentials for {url}: {error}") from error


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path

    def names(self) -> Iterable[str]:
        return [path.name for path in self.path.iterdir()] if self.path.is_dir() else []

    def read(self, name: str) -> tuple[bytes, str]:
        try:
            data = (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return b"", ""
        return data, hashlib.sha256(data).hexdigest()

    def write(self, name: str, data: bytes, replaces: str) -> bool:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self._alone():
                return self._replace(name, data, replaces)
        except OSError as error:
            got = f"{self.path}: {error.strerror}"
            raise InputError(
                "--history cannot be written", got=got, allowed="a folder", fix="make it writable"
            ) from error

    def _replace(self, name: str, data: bytes, replaces: str) -> bool:
        if self.read(name)[1] != replaces:
            return False
        draft = self.path / f".{name}.{os.getpid()}"
        draft.write_bytes(data)
        draft.replace(self.path / name)
        return True

    @contextmanager
    def _alone(self) -> Generator[None]:
        with (self.path / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True, slots=True)
class Bucket:
    bucket: Any
    prefix: str

    def names(self) -> Iterable[str]:
        with self._unjudged_faults():
            blobs = list(self.bucket.list_blobs(prefix=f"{self.prefix}churn-"))
        return [str(blob.name).removeprefix(self.prefix) for blob in blobs]

    def read(self, name: str) -> tuple[bytes, str]:
        from google.api_core import exceptions

        with self._unjudged_faults():
            try:
                blob = self.bucket.blob(self.prefix + name)
                data = blob.download_as_bytes()
            except exceptions.NotFound:
                return b"", ""
            # Of the bytes that came, not of what the object has become since.
            return data, str(blob.generation)

    def write(self, name: str, data: bytes, replaces: str) -> bool:
        from google.api_core import exceptions

        with self._unjudged_faults():
            try:
                blob = self.bucket.blob(self.prefix + name)
                blob.upload_from_string(data, "application/json", if_generation_match=int(replaces or 0))
            except exceptions.PreconditionFailed:
                return False
        return True

    @contextmanager
    def _unjudged_faults(self) -> Generator[None]:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except exceptions.Forbidden as error:
            raise Unjudged(
                f"bucket {self.bucket.name} is closed; roles/storage.objectUser is needed: {error}"
            ) from error
        except (exceptions.GoogleAPIError, GoogleAuthError, OSError) as error:
            raise Unjudged(f"bucket {self.bucket.name} did not answer: {error}") from error
