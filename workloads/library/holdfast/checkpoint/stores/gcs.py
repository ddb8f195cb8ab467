"""Checkpoints in a Cloud Storage bucket: one request per object, create-only by generation
precondition.

A shard is sent as one media upload: whole or absent like every PUT, without an extra copy of the
bytes. A killed uploader leaves no unfinished session, as it would with a resumable upload; a shard
that fails is sent again whole. The response holds the store's own crc32c, which is compared.

Decision: infra/decisions/0023.
"""

import base64
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self
from urllib.parse import quote

import requests
import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage as gcs
from requests.adapters import HTTPAdapter

from holdfast.checkpoint.errors import (
    AlreadyExists,
    Denied,
    Full,
    NotFound,
    StorageError,
    Transient,
)
from holdfast.checkpoint.stores.storage import Stat, check_name, fill
from holdfast.checkpoint.stores.storage import crc32c as compute_crc32c
from holdfast.support.errors import InputError

CONNECT_S = 10.0
# Variable by which Google's clients find an emulator.
ENV_EMULATOR = "STORAGE_EMULATOR_HOST"
SEND_BYTES = 1 << 20
_FIELDS = "items(name,size,updated,crc32c),nextPageToken"


class GcsStorage:
    """The objects below a prefix of a bucket."""

    read_bytes = 1 << 30

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        request_s: float,
        check: Callable[[str], str] = check_name,
    ) -> None:
        self._check = check
        self._prefix = f"{check(prefix)}/" if prefix else ""
        self._client = client
        # For tracing, the client would request the bucket's metadata in a thread, whose retries
        # draw from Python's `random`.
        client._bucket_metadata_cache = None
        # A half-open connection never ends by itself: this limits the silence while sending and
        # while receiving.
        self._timeout = (min(CONNECT_S, request_s), request_s)
        self._bucket = client.bucket(bucket)
        self._objects = f"storage/v1/b/{quote(bucket, safe='')}/o"
        self._session = _make_session(client)

    @classmethod
    def open(
        cls,
        *,
        bucket: str,
        prefix: str,
        request_s: float,
        check: Callable[[str], str] = check_name,
    ) -> Self:
        """Open a bucket with the default credentials. Raises InputError if it cannot be listed.

        `check` returns an object's name unchanged if the name is allowed, and raises otherwise.
        """
        try:
            storage = cls(
                gcs.Client(),
                bucket,
                prefix,
                request_s,
                check,
            )
            # One listing detects a missing bucket or permission now, and not at the first save.
            # A store that is down for a moment passes: the callers try again.
            with suppress(Transient):
                next(storage.list(""), None)
            return storage
        except (auth.GoogleAuthError, OSError) as error:
            raise _bucket_error(
                bucket,
                prefix,
                f"no credentials: {error}",
            ) from error
        except (NotFound, Denied) as error:
            raise _bucket_error(bucket, prefix, str(error)) from error

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        with _translate_errors(name):
            response = self._session.post(
                f"{self._client.api_endpoint}/upload/{self._objects}",
                params={
                    "uploadType": "media",
                    "name": self._full_name(name),
                    "ifGenerationMatch": "0",
                },
                data=_Pieces(data),  # pyright: ignore[reportArgumentType]
                headers={
                    "content-type": "application/octet-stream",
                    "x-goog-hash": f"crc32c={_encode_crc32c(crc32c)}",
                },
                timeout=self._timeout,
            )
        if response.status_code != requests.codes.ok:
            raise _make_error(response.status_code, name, response.text)
        body: dict[str, Any] = response.json()
        # The response describes the stored object; bytes that changed on the way are sent again
        # under the same name.
        expected = _encode_crc32c(crc32c)
        same_size = int(body["size"]) == len(data)
        same_checksum = body.get("crc32c", expected) == expected
        if not same_size or not same_checksum:
            with suppress(StorageError):
                self.delete(name)
            raise Transient(
                f"{name}: arrived with {body['size']} bytes, crc32c {body.get('crc32c')}"
            )

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        # An empty range cannot be requested.
        if not len(into):
            self.stat(name)
            return
        # Identity: a transparently unzipped object would have another length than its range.
        last = start + len(into) - 1
        headers = {"range": f"bytes={start}-{last}", "accept-encoding": "identity"}
        quoted_name = quote(self._full_name(name), safe="")
        path = f"{self._objects}/{quoted_name}"
        with (
            _translate_errors(name),
            self._session.get(
                f"{self._client.api_endpoint}/download/{path}",
                params={"alt": "media"},
                headers=headers,
                timeout=self._timeout,
                stream=True,
            ) as response,
        ):
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                raise EOFError(f"{name} ends before byte {start}")
            if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
                raise _make_error(response.status_code, name, response.text)
            # Emulators and proxies that ignore ranges send the whole object: the bytes before the
            # range are read and dropped.
            if response.status_code == requests.codes.ok and start:
                fill(
                    memoryview(bytearray(start)),
                    name,
                    response.raw.readinto,
                )
            fill(into, name, response.raw.readinto)

    def list(self, prefix: str) -> Iterator[Stat]:
        below = self._prefix + (f"{self._check(prefix)}/" if prefix else "")
        with _translate_errors(prefix):
            blobs = self._client.list_blobs(
                self._bucket,
                prefix=below,
                fields=_FIELDS,
                retry=None,
                timeout=self._timeout,
            )
            for blob in blobs:
                yield self._make_stat(blob)

    def stat(self, name: str) -> Stat:
        with _translate_errors(name):
            blob = self._bucket.get_blob(
                self._full_name(name),
                retry=None,
                timeout=self._timeout,
            )
        if blob is None:
            raise NotFound(f"{name}: no such object")
        return self._make_stat(blob)

    def delete(self, name: str) -> None:
        with suppress(NotFound), _translate_errors(name):
            blob = self._bucket.blob(self._full_name(name))
            blob.delete(retry=None, timeout=self._timeout)

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        with _translate_errors(source):
            blob = self._bucket.blob(self._full_name(source))
            try:
                self._bucket.move_blob(
                    blob,
                    self._full_name(target),
                    if_generation_match=None if replace else 0,
                    retry=None,
                    timeout=self._timeout,
                )
            except api.BadRequest:
                # Emulators may know no move.
                if ENV_EMULATOR not in os.environ:
                    raise
                self._copy_and_delete(source, target, replace=replace)

    def _copy_and_delete(
        self,
        source: str,
        target: str,
        *,
        replace: bool,
    ) -> None:
        """Move an object in an emulator that has no moves, which takes several requests."""
        data = memoryview(bytearray(self.stat(source).bytes))
        self.read_into(source, 0, data)
        if replace:
            self.delete(target)
        self.put(target, data, compute_crc32c(data))
        self.delete(source)

    def _full_name(self, name: str) -> str:
        return self._prefix + self._check(name)

    def _make_stat(self, blob: gcs.Blob) -> Stat:
        return Stat(
            name=str(blob.name).removeprefix(self._prefix),
            bytes=int(blob.size or 0),
            modified=blob.updated.timestamp() if blob.updated else 0.0,
            crc32c=base64.b64decode(blob.crc32c).hex() if blob.crc32c else "",
        )


class _Pieces:
    """Memory to send without copies, in pieces: a socket's timeout covers one whole `sendall`.

    It can be iterated again, because the session repeats a request after it refreshed its token.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[memoryview]:
        for start in range(0, len(self._data), SEND_BYTES):
            yield self._data[start : start + SEND_BYTES]


_BROKEN = (auth.TransportError, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


@contextmanager
def _translate_errors(name: str) -> Generator[None]:
    """Turn the errors of the client into those of the library."""
    try:
        yield
    except api.GoogleAPICallError as error:
        raise _make_error(
            int(error.code or 0),
            name,
            str(error.message),
        ) from error
    except _BROKEN as error:
        raise Transient(f"{name}: {error}") from error
    except auth.GoogleAuthError as error:
        kind = Transient if _has_no_answer(error) else Denied
        raise kind(f"{name}: {error}") from error


def _has_no_answer(error: auth.GoogleAuthError) -> bool:
    """Tell whether a metadata server gave no token because it was not reached, or not ready.

    That of GKE takes some seconds to answer a new pod.
    """
    cause = error.__cause__
    if not isinstance(cause, auth.TransportError):
        return error.retryable
    # A refusal comes with its response, silence without one.
    for argument in cause.args:
        status = int(getattr(argument, "status", 0))
        if 400 <= status < 500:
            return False
    return True


_BY_STATUS: dict[int, type[StorageError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    412: AlreadyExists,
    # 409: two conditional writes of one name at once; the next try shows which one won.
    408: Transient,
    409: Transient,
    429: Transient,
}


def _make_error(
    code: int,
    name: str,
    text: str,
) -> StorageError:
    default = Transient if code == 0 or code >= 500 else StorageError
    kind = _BY_STATUS.get(code, default)
    # An exhausted quota and a missing permission share a code; only the quota recovers by itself.
    if code == 403 and "quota" in text.lower():
        kind = Full
    return kind(f"{name}: HTTP {code} {text[:200]}")


def _make_session(client: Any) -> requests.Session:
    """Make a session without retries, with a pool of connections for shards in parallel."""
    credentials = client._credentials
    if isinstance(credentials, AnonymousCredentials):
        session = requests.Session()
    else:
        session = AuthorizedSession(credentials)
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=64)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session


def _encode_crc32c(crc32c: str) -> str:
    return base64.b64encode(bytes.fromhex(crc32c)).decode()


def _bucket_error(
    bucket: str,
    prefix: str,
    got: str,
) -> InputError:
    return InputError(
        f"checkpoint bucket gs://{bucket}/{prefix} cannot be used",
        got=got[:300],
        allowed="an existing bucket on which this identity has roles/storage.objectUser",
        fix="check the bucket's name, the pod's service account and its role on the bucket",
    )
