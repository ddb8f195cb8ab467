"""An item: what is queued, predicted and stored once. Its message, its name's grammar, its limits.

Everything here comes from outside and is checked before it is stored, sent or computed on.
"""

import base64
import hashlib
import json
import unicodedata
from dataclasses import dataclass
from typing import cast

from holdfast.inference.errors import MalformedMessage
from holdfast.support.errors import InputError

MAX_ITEM_CHARS = 512
MAX_JOB_CHARS = 63
# Pub/Sub takes 10 MB a message; base64 makes 4 bytes of 3.
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_MESSAGE_BYTES = 6 * 1024 * 1024
MESSAGE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    job: str
    id: str
    body: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def encode(item: Item) -> bytes:
    """One JSON object, readable by a publisher in any language."""
    body = base64.b64encode(item.body).decode()
    return json.dumps(
        {
            "v": MESSAGE_VERSION,
            "job": item.job,
            "item": item.id,
            "body": body,
        }
    ).encode()


def decode(data: bytes) -> Item:
    if len(data) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"{len(data)} bytes, allowed {MAX_MESSAGE_BYTES}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedMessage("not JSON") from None
    if (
        not isinstance(fields, dict)
        or cast("dict[str, object]", fields).get("v") != MESSAGE_VERSION
    ):
        raise MalformedMessage(f"not an object of version {MESSAGE_VERSION}")
    job, name, body = (
        cast("dict[str, object]", fields).get(key) for key in ("job", "item", "body")
    )
    if not (isinstance(job, str) and isinstance(name, str) and isinstance(body, str)):
        raise MalformedMessage("job, item and body must be text")
    why = job_fault(job)
    if why or (why := id_fault(name)):
        raise MalformedMessage(why)
    try:
        decoded = base64.b64decode(body, validate=True)
    except ValueError:
        raise MalformedMessage("body is not base64") from None
    if len(decoded) > MAX_BODY_BYTES:
        raise MalformedMessage(f"body has {len(decoded)} bytes, allowed {MAX_BODY_BYTES}")
    return Item(job=job, id=name, body=decoded)


def id_fault(name: str) -> str:
    """Why `name` cannot be an item id; empty when it can."""
    if not 1 <= len(name) <= MAX_ITEM_CHARS:
        return f"item id has {len(name)} characters, allowed 1 to {MAX_ITEM_CHARS}"
    # Cc: control characters with NUL, which PostgreSQL refuses. Cs: half a surrogate pair, no
    # UTF-8.
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        return "item id holds a control character or a lone surrogate"
    return ""


def job_fault(name: str) -> str:
    if 1 <= len(name) <= MAX_JOB_CHARS and all(
        c.isascii() and (c.isalnum() or c in "._-") for c in name
    ):
        if name[0].isalnum():
            return ""
        return "job name begins with neither letter nor digit"
    return f"job name is not 1 to {MAX_JOB_CHARS} of A-Z a-z 0-9 . _ -"


def checked_job(name: str) -> str:
    why = job_fault(name)
    if why:
        raise InputError(
            why,
            got=repr(name[:80]),
            allowed="such as nightly-2026-11-21",
            fix="rename the job",
        )
    return name


def checked_item(job: str, name: str, body: bytes, *, source: object) -> Item:
    """An item at the border of enqueue, or an InputError that names its place."""
    why = id_fault(name)
    if why:
        raise InputError(
            why,
            got=f"{name[:60]!r} in {source}",
            allowed="printable text",
            fix="rename the item",
        )
    require_size(name, len(body), source=source)
    return Item(job=job, id=name, body=body)


def require_size(name: str, size: int, *, source: object) -> None:
    if size > MAX_BODY_BYTES:
        raise InputError(
            "item is larger than a message may be",
            got=f"{name[:60]}: {size} bytes in {source}",
            allowed=f"at most {MAX_BODY_BYTES} bytes",
            fix="split it, or remove it",
        )
