"""From a URL to the store behind it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.local import LocalStorage
from holdfast.checkpoint.storage import REQUEST_S, Storage
from holdfast.contract.errors import InputError


def existing_storage(url: str, *, request_s: float = REQUEST_S) -> Storage:
    """For readers: a folder that is not there is an error, not created."""
    parts = urlsplit(url)
    # Opening creates the folder, and a mistyped path would become an empty store.
    if parts.scheme in ("", "file") and not Path(unquote(parts.path)).is_dir():
        raise InputError("no such checkpoint folder", got=url[:200], allowed="an existing folder", fix="check the URL")
    return open_storage(url, request_s=request_s)


def open_storage(url: str, *, request_s: float = REQUEST_S) -> Storage:
    """`file:///dir`, a plain path, or `gs://bucket/prefix`. `request_s`: how long a bucket may stay silent."""
    parts = urlsplit(url)
    if parts.scheme == "gs":
        from holdfast.checkpoint.gcs import GcsStorage  # an extra: only who keeps checkpoints in a bucket has it

        return GcsStorage.open(bucket=parts.netloc, prefix=parts.path.strip("/"), request_s=request_s)
    if parts.scheme in ("", "file") and parts.netloc in ("", "localhost") and parts.path:
        return LocalStorage.open(url if not parts.scheme else unquote(parts.path))
    raise InputError(
        "checkpoint URL is of no known kind",
        got=url[:200],
        allowed="file:///absolute/dir, a path, or gs://bucket/prefix",
        fix="write the URL in one of these forms",
    )
