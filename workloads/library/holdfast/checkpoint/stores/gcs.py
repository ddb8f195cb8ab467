"""Checkpoints in a Cloud Storage bucket: one request per object, create-only by generation
precondition.

A shard is sent as one media upload. That is whole or absent like every PUT, takes no extra copy of
the bytes, and leaves no half-done session behind a killed uploader, as a resumable upload would; a
shard that fails is sent again whole. The store's own crc32c comes back in the answer and is
compared.

Decision: infra/decisions/0023.
"""

import base64
from collections.abc import Generator, Iterator
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
from holdfast.checkpoint.stores.storage import Stat, checked_name, fill
from holdfast.support.errors import InputError

CONNECT_S = 10.0
SEND_BYTES = 1 << 20
_FIELDS = "items(name,size,updated,crc32c),nextPageToken"


class GcsStorage:
    read_bytes = 1 << 30

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        request_s: float,
    ) -> None:
        self._prefix = f"{checked_name(prefix)}/" if prefix else ""
        self._client = client
        # For traces only, it would ask for the bucket in a thread of its own, whose retries draw
        # from Python's `random`.
        client._bucket_metadata_cache = None
        # A half-open connection never ends by itself: silence does, while sending and while
        # receiving.
        self._timeout = (min(CONNECT_S, request_s), request_s)
        self._bucket = client.bucket(bucket)
        self._objects = f"storage/v1/b/{quote(bucket, safe='')}/o"
        self._session = _session(client)

    @classmethod
    def open(cls, *, bucket: str, prefix: str, request_s: float) -> Self:
        """Raises InputError where the bucket cannot be listed."""
        try:
            storage = cls(gcs.Client(), bucket, prefix, request_s)
            # One listing shows a missing bucket or right now, and not when the first save fails.
            with suppress(Transient):  # down for a moment: the callers try again
                next(storage.list(""), None)
            return storage
        except (auth.GoogleAuthError, OSError) as error:
            raise _unusable(bucket, prefix, f"no credentials: {error}") from error
        except (NotFound, Denied) as error:
            raise _unusable(bucket, prefix, str(error)) from error

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        with _translated(name):
            answer = self._session.post(
                f"{self._client.api_endpoint}/upload/{self._objects}",
                params={
                    "uploadType": "media",
                    "name": self._full(name),
                    "ifGenerationMatch": "0",
                },
                data=_Pieces(data),  # pyright: ignore[reportArgumentType]
                headers={
                    "content-type": "application/octet-stream",
                    "x-goog-hash": f"crc32c={_wire(crc32c)}",
                },
                timeout=self._timeout,
            )
        if answer.status_code != requests.codes.ok:
            raise _refused(answer.status_code, name, answer.text)
        body: dict[str, Any] = answer.json()
        # The store's answer names what it stored; bytes that changed on the way are sent again
        # under the same name.
        if int(body["size"]) != len(data) or body.get("crc32c", _wire(crc32c)) != _wire(crc32c):
            with suppress(StorageError):
                self.delete(name)
            raise Transient(
                f"{name}: arrived with {body['size']} bytes, crc32c {body.get('crc32c')}"
            )

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        if not len(into):  # there is no range of no bytes
            self.stat(name)
            return
        # Identity: a transparently unzipped object would have another length than its range.
        headers = {"range": f"bytes={start}-{start + len(into) - 1}", "accept-encoding": "identity"}
        with (
            _translated(name),
            self._session.get(
                f"{self._client.api_endpoint}/download/{self._objects}/{quote(self._full(name), safe='')}",
                params={"alt": "media"},
                headers=headers,
                timeout=self._timeout,
                stream=True,
            ) as answer,
        ):
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                raise EOFError(f"{name} ends before byte {start}")
            if answer.status_code not in (requests.codes.ok, requests.codes.partial_content):
                raise _refused(answer.status_code, name, answer.text)
            # Emulators and proxies ignore ranges and send all of it: what comes before must be read
            # and dropped.
            if answer.status_code == requests.codes.ok and start:  # a server that knows no ranges
                fill(memoryview(bytearray(start)), name, answer.raw.readinto)
            fill(into, name, answer.raw.readinto)

    def list(self, prefix: str) -> Iterator[Stat]:
        below = self._prefix + (f"{checked_name(prefix)}/" if prefix else "")
        with _translated(prefix):
            found = self._client.list_blobs(
                self._bucket,
                prefix=below,
                fields=_FIELDS,
                retry=None,
                timeout=self._timeout,
            )
            for blob in found:
                yield self._stat_of(blob)

    def stat(self, name: str) -> Stat:
        with _translated(name):
            blob = self._bucket.get_blob(self._full(name), retry=None, timeout=self._timeout)
        if blob is None:
            raise NotFound(f"{name}: no such object")
        return self._stat_of(blob)

    def delete(self, name: str) -> None:
        with suppress(NotFound), _translated(name):
            self._bucket.blob(self._full(name)).delete(retry=None, timeout=self._timeout)

    def _full(self, name: str) -> str:
        return self._prefix + checked_name(name)

    def _stat_of(self, blob: gcs.Blob) -> Stat:
        return Stat(
            name=str(blob.name).removeprefix(self._prefix),
            bytes=int(blob.size or 0),
            modified=blob.updated.timestamp() if blob.updated else 0.0,
            crc32c=base64.b64decode(blob.crc32c).hex() if blob.crc32c else "",
        )


class _Pieces:
    """Memory to send without copies, in pieces, because a socket's time-out is for all of one
    `sendall`.

    Iterated again: after a refreshed token the session sends its request again.
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
def _translated(name: str) -> Generator[None]:
    """Around calls of the client: what it raises becomes an error of the library."""
    try:
        yield
    except api.GoogleAPICallError as error:
        raise _refused(int(error.code or 0), name, str(error.message)) from error
    except _BROKEN as error:
        raise Transient(f"{name}: {error}") from error
    except auth.GoogleAuthError as error:
        raise Denied(f"{name}: {error}") from error


_BY_STATUS: dict[int, type[StorageError]] = {
    **dict.fromkeys((401, 403), Denied),
    404: NotFound,
    412: AlreadyExists,
    # 409: two conditional writes of one name at once; the next try shows who won.
    **dict.fromkeys((408, 409, 429), Transient),
}


def _refused(code: int, name: str, text: str) -> StorageError:
    kind = _BY_STATUS.get(code, Transient if code == 0 or code >= 500 else StorageError)
    # Spent quota and missing permission share a code, and only the first goes away by itself.
    if code == 403 and "quota" in text.lower():
        kind = Full
    return kind(f"{name}: HTTP {code} {text[:200]}")


def _session(client: Any) -> requests.Session:
    """With a pool of connections for shards in parallel, and no retries of its own."""
    credentials = client._credentials
    if isinstance(credentials, AnonymousCredentials):
        session = requests.Session()
    else:
        session = AuthorizedSession(credentials)
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=64)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session


def _wire(crc32c: str) -> str:
    return base64.b64encode(bytes.fromhex(crc32c)).decode()


def _unusable(bucket: str, prefix: str, got: str) -> InputError:
    return InputError(
        f"checkpoint bucket gs://{bucket}/{prefix} cannot be used",
        got=got[:300],
        allowed="an existing bucket on which this identity has roles/storage.objectUser",
        fix="check the bucket's name, the pod's service account and its role on the bucket",
    )
