"""Open the store of a URL, with retries of requests that may succeed later.

If the first try of a put succeeds but its answer is lost, the retry raises AlreadyExists;
`put_object` then compares the object with its own bytes. In the same case a move raises NotFound.
"""

import os
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.checkpoint.errors import StorageError, Transient
from holdfast.checkpoint.settings import REQUEST_S, Tuning
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import Stat, Storage, check_name
from holdfast.support.distribution import install_command
from holdfast.support.errors import InputError
from holdfast.support.extensions import load_extensions, make_extension_error
from holdfast.support.retry import Retry

ALLOWED = (
    "file:///absolute/dir, a path, gs://bucket/prefix, or a scheme of the entry points"
    " holdfast.stores"
)

GCS_CLIENT = "google.cloud.storage"
# A distribution adds a store by an entry point whose name is the scheme.
GROUP = "holdfast.stores"
_CALLABLE = "a callable (url, *, request_s) that returns a holdfast.checkpoint.stores.Storage"


def open_storage(url: str, *, request_s: float = REQUEST_S) -> Storage:
    """Open the store of a URL of one of the forms in ALLOWED.

    `request_s` is the time that a bucket may stay silent. Raises InputError for another form, a
    store whose package is missing, and a store that cannot be used.
    """
    parts = _split(url)
    if parts.scheme == "gs" and parts.netloc:
        return _open_bucket(parts, request_s)
    is_local = parts.scheme in ("", "file") and parts.netloc in ("", "localhost")
    if is_local and parts.path:
        return LocalStorage.open(_get_path(url, parts))
    if parts.scheme not in ("", "gs", "file"):
        storage = _open_extension(url, parts.scheme, request_s)
        if storage:
            return storage
    raise _form_error(url)


def reliable_storage(
    url: str,
    tuning: Tuning,
    *,
    create: bool = False,
) -> Storage:
    """Open the store of a URL; requests that may succeed later are retried for `tuning.retry_s`.

    Writers pass `create`, readers do not. Raises InputError for a URL of an unknown form and a
    store that cannot be used.
    """
    parts = _split(url)
    # Opening creates the folder: for a reader, a mistyped path would become an empty store.
    # Not Path.is_dir(), which raises for a name that no file system takes.
    is_local = parts.scheme in ("", "file")
    folder = os.path.expanduser(_get_path(url, parts))  # noqa: PTH111
    if is_local and not create and not os.path.isdir(folder):  # noqa: PTH112
        raise InputError(
            "no such checkpoint folder",
            got=url[:200],
            allowed="an existing folder",
            fix="check the URL",
        )
    return Retrying(open_storage(url, request_s=tuning.request_s), budget_s=tuning.retry_s)


def open_foreign_bucket(url: str) -> Storage:
    """Open a gs:// URL whose objects others have written, under names of any form.

    Raises InputError for another URL, and for a bucket that cannot be listed.
    """
    parts = _split(url)
    if parts.scheme != "gs" or not parts.netloc:
        raise _form_error(url)
    return _open_bucket(parts, REQUEST_S, check=lambda name: name)


def client_of(url: str) -> str:
    """Return the client package of this URL's store; empty if none is needed or installed."""
    return GCS_CLIENT if url.startswith("gs://") and _is_installed(GCS_CLIENT) else ""


def _open_bucket(
    parts: SplitResult,
    request_s: float,
    check: Callable[[str], str] = check_name,
) -> Storage:
    if not _is_installed(GCS_CLIENT):
        raise InputError(
            "gs:// needs a package that is not installed",
            got="holdfast without its extra gcs",
            allowed="file:///absolute/dir and paths need none",
            fix=install_command("gcs"),
        )
    # Imported here: an extra, installed only if checkpoints are kept in a bucket.
    from holdfast.checkpoint.stores.gcs import GcsStorage

    return GcsStorage.open(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        request_s=request_s,
        check=check,
    )


def _open_extension(
    url: str,
    scheme: str,
    request_s: float,
) -> Storage | None:
    """Open the store of an entry point that is named like the scheme; None if there is none."""
    for distribution, name, make in load_extensions(GROUP):
        if name == scheme:
            try:
                storage = cast(Callable[..., object], make)(url, request_s=request_s)
            except TypeError as error:
                raise make_extension_error(
                    distribution,
                    f"{GROUP}: {name}",
                    str(error),
                    _CALLABLE,
                ) from error
            if not isinstance(storage, Storage):
                kind = type(storage).__name__
                raise make_extension_error(
                    distribution,
                    f"{GROUP}: {name}",
                    kind,
                    _CALLABLE,
                )
            return storage
    return None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        secret = parts.password
    except ValueError as error:  # a bracket that is not closed
        raise _form_error(url) from error
    # A URL goes into logs, arguments of processes and errors.
    if secret:
        raise InputError(
            "checkpoint URL holds a password",
            got=f"{parts.scheme}://{parts.username}:...@{parts.hostname}",
            allowed="a URL without one",
            fix="give the credentials to the driver by its environment or configuration file",
        )
    return parts


def _get_path(url: str, parts: SplitResult) -> str:
    """Return the path of a local store. One without a scheme has no escapes and no fragment."""
    return unquote(parts.path) if parts.scheme else url


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above a dotted name is missing
        return False


def _form_error(url: str) -> InputError:
    return InputError(
        "checkpoint URL has an unknown form",
        got=url[:200],
        allowed=ALLOWED,
        fix="write the URL in one of these forms",
    )


T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 20.0


class Retrying:
    """A store whose transient failures are tried again until a budget of time is spent."""

    def __init__(
        self,
        storage: Storage,
        *,
        budget_s: float,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.read_bytes = storage.read_bytes
        self._storage = storage
        self._budget_s = budget_s
        self._sleep = sleep
        self._clock = clock

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        self._keep_trying(lambda: self._storage.put(name, data, crc32c))

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        self._keep_trying(lambda: self._storage.read_into(name, start, into))

    def list(self, prefix: str) -> Iterator[Stat]:
        # Listed to the end within one try: a partial listing would look like a store with fewer
        # checkpoints.
        return iter(self._keep_trying(lambda: list(self._storage.list(prefix))))

    def stat(self, name: str) -> Stat:
        return self._keep_trying(lambda: self._storage.stat(name))

    def delete(self, name: str) -> None:
        self._keep_trying(lambda: self._storage.delete(name))

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        self._keep_trying(lambda: self._storage.move(source, target, replace=replace))

    def _keep_trying(self, call: Callable[[], T]) -> T:
        deadline = self._clock() + self._budget_s

        # The last pause ends with the budget, so that one more try is made there.
        def pause(seconds: float) -> None:
            remaining_s = deadline - self._clock()
            self._sleep(max(0.0, min(remaining_s, seconds)))

        retry = Retry(
            transient=(Transient,),
            give_up=lambda: self._clock() >= deadline,
            first_pause_s=FIRST_PAUSE_S,
            longest_pause_s=LONGEST_PAUSE_S,
            sleep=pause,
        )
        try:
            return retry(call)
        except Transient as error:
            raise StorageError(f"{error} (tried for {self._budget_s:.0f} s)") from error
