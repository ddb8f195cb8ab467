"""Checkpoints in a container of Azure Blob Storage.

`az://container/prefix` in the account of AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_NAME, or
`abfss://container@account.dfs.core.windows.net/prefix`. A blob is created by `If-None-Match: *` and appears whole:
a large one when the list of its blocks is committed. The service keeps no crc32c, so it stays with the blob as
metadata; what crosses the network is compared by MD5.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Self

from azure.core import exceptions as az
from azure.storage.blob import BlobServiceClient

from holdfast.checkpoint.errors import AlreadyExists, Denied, Full, NotFound, StorageError, Transient
from holdfast.checkpoint.stores.storage import Bucket, MemoryFile, Stat, Translated, kind_of_status
from holdfast.contract.errors import InputError

# Each block is copied once to be sent, and as many as `parallel` are in flight.
BLOCK_BYTES = 16 << 20
CHECKSUM_FIELD = "crc32c"
ENV_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
ENV_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
ENV_SECRET = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN")


class AzureStorage(Bucket):
    create_only = True

    def __init__(self, container: Any, prefix: str) -> None:
        super().__init__(prefix)
        self._container = container

    @classmethod
    def open(cls, *, container: str, account: str, prefix: str, request_s: float) -> Self:
        """Raises InputError where the container cannot be listed."""
        where = f"{container}/{prefix}"
        try:
            return cls(_service(account, where, request_s).get_container_client(container), prefix)._usable()
        except (StorageError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise _unusable(where, str(error)) from error

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        with _translated(name):
            self._container.get_blob_client(self._full(name)).upload_blob(
                _Blocks(data),
                length=len(data),
                overwrite=False,
                metadata={CHECKSUM_FIELD: crc32c},
                validate_content=True,
            )

    def _read(self, name: str, start: int, into: memoryview) -> None:
        with _translated(name):
            blob = self._container.get_blob_client(self._full(name))
            done = 0
            for chunk in blob.download_blob(offset=start, length=len(into), max_concurrency=1).chunks():
                into[done : done + len(chunk)] = chunk
                done += len(chunk)
        if done < len(into):
            raise EOFError(f"{name} ends {len(into) - done} bytes early")

    def list(self, prefix: str) -> Iterator[Stat]:
        with _translated(prefix):
            for blob in self._container.list_blobs(name_starts_with=self._below(prefix), include=["metadata"]):
                yield self._stat_of(blob)

    def stat(self, name: str) -> Stat:
        with _translated(name):
            return self._stat_of(self._container.get_blob_client(self._full(name)).get_blob_properties())

    def delete(self, name: str) -> None:
        with suppress(NotFound), _translated(name):
            self._container.get_blob_client(self._full(name)).delete_blob()

    def _stat_of(self, blob: Any) -> Stat:
        return Stat(
            name=str(blob.name).removeprefix(self._prefix),
            bytes=int(blob.size),
            modified=blob.last_modified.timestamp(),
            crc32c=str((blob.metadata or {}).get(CHECKSUM_FIELD, "")),
        )


class _Blocks(MemoryFile):
    """The client takes bytes only, so each read is a copy of one block and never of the shard."""

    def read(self, size: int = -1) -> bytes:
        return bytes(self.next_bytes(size))


def _ours(error: BaseException, name: str) -> Exception | None:
    if isinstance(error, az.HttpResponseError):
        return _refused(error, name)
    return Transient(f"{name}: {error}") if isinstance(error, (az.AzureError, OSError)) else None


_translated = partial(Translated, _ours)


_BY_CODE: dict[str, type[StorageError]] = {
    "Md5Mismatch": Transient,  # bytes that changed on the way
    "ContainerBeingDeleted": Denied,
    "AccountIsDisabled": Denied,
    "AccountQuotaExceeded": Full,
}


def _refused(error: az.HttpResponseError, name: str) -> StorageError | EOFError:
    status = int(error.status_code or 0)
    code = str(getattr(error, "error_code", "") or "")
    if status == 416:
        return EOFError(f"{name} ends before the range that was asked for")
    # The service answers a taken name by 409, where others mean two writers at once.
    kind = _BY_CODE.get(code) or (AlreadyExists if status == 409 else kind_of_status(status))
    # The first line only: those below it quote the request.
    return kind(f"{name}: HTTP {status} {code} {str(error.message).splitlines()[0][:200]}")


def _service(account: str, where: str, request_s: float) -> Any:
    options: dict[str, Any] = {
        "max_single_put_size": BLOCK_BYTES,
        "max_block_size": BLOCK_BYTES,
        "max_single_get_size": BLOCK_BYTES,
        "max_chunk_get_size": BLOCK_BYTES,
        "connection_timeout": min(10.0, request_s),
        "read_timeout": request_s,
        "retry_total": 0,  # Retrying has the budget
    }
    if not account and (connection := os.environ.get(ENV_CONNECTION)):
        return BlobServiceClient.from_connection_string(connection, **options)
    name = account or next(filter(None, map(os.environ.get, ENV_ACCOUNT)), "")
    if not name:
        raise _unusable(where, f"neither {ENV_CONNECTION} nor {ENV_ACCOUNT[0]} is set")
    host = name if "." in name else f"{name}.blob.core.windows.net"
    return BlobServiceClient(f"https://{host}", credential=_credential(where), **options)


def _credential(where: str) -> Any:
    """A key or a token of the environment, else the identity of the machine."""
    if secret := next(filter(None, map(os.environ.get, ENV_SECRET)), ""):
        return secret
    try:
        identity: Any = import_module("azure.identity")
    except ModuleNotFoundError as error:
        missing = f"none of {', '.join(ENV_SECRET)} is set, and azure-identity is not installed"
        raise _unusable(where, missing) from error
    return identity.DefaultAzureCredential()


def _unusable(where: str, got: str) -> InputError:
    return InputError(
        f"checkpoint container az://{where} cannot be used",
        got=got[:300],
        allowed="an existing container on which this identity has the role Storage Blob Data Contributor",
        fix=f"check the container's name, the role, and {ENV_CONNECTION} or {ENV_ACCOUNT[0]} with a credential",
    )
