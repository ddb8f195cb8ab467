"""Checkpoints in a bucket of S3 or of a store that speaks its protocol (AWS_ENDPOINT_URL_S3 names such a store).

A shard is one PUT with its crc32c, which the store compares, and with `If-None-Match: *`, so that it is created
and never replaced. Some compatible stores ignore that condition: then this one looks before it writes, which lets
two writers of one name through in the same moment, and `create_only` is false.

Decision: infra/decisions/0029.
"""

import base64
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from holdfast.checkpoint.errors import AlreadyExists, Denied, Full, NotFound, StorageError, Transient
from holdfast.checkpoint.stores.storage import (
    Bucket,
    MemoryFile,
    Stat,
    Translated,
    check_absent,
    fill,
    kind_of_status,
    random_hex,
)
from holdfast.contract.errors import InputError

CONNECT_S = 10.0
SEND_BYTES = 1 << 20
_AWS = (".amazonaws.com", ".amazonaws.com.cn")
_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError)
# Not of a request: a region that is not set, a profile that is not there, a name that no bucket can have.
_SETTINGS = (boto.NoRegionError, boto.ProfileNotFound, boto.ParamValidationError, boto.InvalidRegionError)


class S3Storage(Bucket):
    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        super().__init__(prefix)
        self._client, self._bucket = client, bucket
        self._conditional: bool | None = None

    @classmethod
    def open(cls, *, bucket: str, prefix: str, request_s: float) -> Self:
        """Raises InputError where the bucket cannot be listed."""
        try:
            return cls(_client(request_s), bucket, prefix)._usable()
        except (StorageError, *_SETTINGS) as error:
            raise _unusable(bucket, prefix, str(error)) from error

    @property
    def create_only(self) -> bool:
        if self._conditional is None:
            host = urlsplit(self._client.meta.endpoint_url).hostname or ""
            self._conditional = host.endswith(_AWS) or self._refuses_a_taken_name()
        return self._conditional

    def _refuses_a_taken_name(self) -> bool:
        # Asked of the store itself: one that does not know the condition says nothing, and overwrites.
        name = f"create-only-{random_hex(6)}"
        data = memoryview(bytearray(b"1"))
        try:
            for _ in range(2):
                self._put(name, data, "90f599e3", {"IfNoneMatch": "*"})
        except AlreadyExists:
            return True
        except Transient:  # no answer is not one of a store that lacks the condition
            raise
        except StorageError:
            return False
        finally:
            with suppress(StorageError):
                self.delete(name)
        return False

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        if not self.create_only:
            check_absent(self, name)
        self._put(name, data, crc32c, {"IfNoneMatch": "*"} if self.create_only else {})

    def _put(self, name: str, data: memoryview, crc32c: str, condition: dict[str, str]) -> None:
        checksum = base64.b64encode(bytes.fromhex(crc32c)).decode()
        with _translated(name):
            self._client.put_object(
                Bucket=self._bucket, Key=self._full(name), Body=_Body(data), ChecksumCRC32C=checksum, **condition
            )

    def _read(self, name: str, start: int, into: memoryview) -> None:
        wanted = f"bytes={start}-{start + len(into) - 1}"
        with _translated(name):
            body = self._client.get_object(Bucket=self._bucket, Key=self._full(name), Range=wanted)["Body"]
            with body:
                fill(into, name, lambda rest: body.readinto(rest[:SEND_BYTES]))

    def list(self, prefix: str) -> Iterator[Stat]:
        with _translated(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._below(prefix)):
                for found in page.get("Contents", ()):
                    name = str(found["Key"]).removeprefix(self._prefix)
                    yield Stat(name=name, bytes=found["Size"], modified=found["LastModified"].timestamp())

    def stat(self, name: str) -> Stat:
        with _translated(name):
            found = self._client.head_object(Bucket=self._bucket, Key=self._full(name), ChecksumMode="ENABLED")
        # A checksum of many parts ends in their number, and is none of the whole.
        checksum = str(found.get("ChecksumCRC32C", ""))
        whole = base64.b64decode(checksum).hex() if checksum and "-" not in checksum else ""
        modified = found["LastModified"].timestamp()
        return Stat(name=name, bytes=found["ContentLength"], modified=modified, crc32c=whole)

    def delete(self, name: str) -> None:
        with suppress(NotFound), _translated(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._full(name))


class _Body(MemoryFile):
    """No copy, and its own size of a read, as botocore's usual 16 KiB cost a call each."""

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int = -1) -> memoryview:
        return self.next_bytes(max(size, SEND_BYTES) if size >= 0 else size)


def _ours(error: BaseException, name: str) -> Exception | None:
    if isinstance(error, boto.ClientError):
        return _refused(error, name)
    if isinstance(error, _NO_CREDENTIALS):
        return Denied(f"{name}: {error}")
    # Every other failure of botocore below a request is one of the connection.
    broken = isinstance(error, (boto.BotoCoreError, OSError)) and not isinstance(error, _SETTINGS)
    return Transient(f"{name}: {error}") if broken else None


_translated = partial(Translated, _ours)


_BY_CODE: dict[str, type[StorageError]] = {
    "BadDigest": Transient,  # bytes that changed on the way
    "XAmzContentChecksumMismatch": Transient,
    "RequestTimeout": Transient,
    "RequestTimeTooSkewed": Denied,
    "QuotaExceeded": Full,
}


def _refused(error: boto.ClientError, name: str) -> StorageError | EOFError:
    answer: Any = error.response
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code, text = (str(answer.get("Error", {}).get(field, ""))[:200] for field in ("Code", "Message"))
    if status == 416:
        return EOFError(f"{name} ends before the range that was asked for")
    kind = _BY_CODE.get(code) or kind_of_status(status)
    return kind(f"{name}: HTTP {status} {code} {text}")


def _client(request_s: float) -> Any:
    config = Config(
        connect_timeout=min(CONNECT_S, request_s),
        read_timeout=request_s,  # silence, while sending and while receiving
        retries={"total_max_attempts": 1},  # Retrying has the budget
        max_pool_connections=64,
        # The checksum is sent by this module: botocore's own default is a trailer that many compatible stores refuse.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.Session().client("s3", config=config)


def _unusable(bucket: str, prefix: str, got: str) -> InputError:
    return InputError(
        f"checkpoint bucket s3://{bucket}/{prefix} cannot be used",
        got=got[:300],
        allowed="an existing bucket on which these credentials may list, get, put and delete objects",
        fix="check the bucket's name, AWS_REGION, the credentials, and AWS_ENDPOINT_URL_S3 for another store than AWS",
    )
