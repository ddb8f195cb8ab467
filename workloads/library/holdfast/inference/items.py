"""Items, which are queued, predicted and stored once: their messages, names and limits.

All of it is input, and checked before it is stored, sent or used.
"""

import base64
import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import cast

from holdfast.inference.errors import MalformedMessage
from holdfast.support.errors import InputError

MAX_ITEM_CHARS = 512
MAX_JOB_CHARS = 63
# Pub/Sub takes messages of 10 MB; base64 makes 4 bytes of 3.
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_MESSAGE_BYTES = 6 * 1024 * 1024
MESSAGE_VERSION = 1
_JOB_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_JOB_CHARS}}}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    job: str
    id: str
    body: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def encode(item: Item) -> bytes:
    """Encodes a message: a JSON object, which publishers in any language can write."""
    message = {
        "v": MESSAGE_VERSION,
        "job": item.job,
        "item": item.id,
        "body": base64.b64encode(item.body).decode(),
    }
    return json.dumps(message).encode()


def decode(data: bytes) -> Item:
    """Decodes a message. Raises MalformedMessage if it is no item."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"{len(data)} bytes, allowed {MAX_MESSAGE_BYTES}")
    fields = _parse_fields(data)
    job = fields.get("job")
    name = fields.get("item")
    body = fields.get("body")
    if not (isinstance(job, str) and isinstance(name, str) and isinstance(body, str)):
        raise MalformedMessage("job, item and body must be text")
    fault = find_job_fault(job) or find_id_fault(name)
    if fault:
        raise MalformedMessage(fault)
    return Item(
        job=job,
        id=name,
        body=_decode_body(body),
    )


def _parse_fields(data: bytes) -> dict[str, object]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedMessage("not JSON") from None
    if isinstance(message, dict):
        fields = cast("dict[str, object]", message)
        if fields.get("v") == MESSAGE_VERSION:
            return fields
    raise MalformedMessage(f"not an object of version {MESSAGE_VERSION}")


def _decode_body(text: str) -> bytes:
    try:
        body = base64.b64decode(text, validate=True)
    except ValueError:
        raise MalformedMessage("body is not base64") from None
    if len(body) > MAX_BODY_BYTES:
        raise MalformedMessage(f"body has {len(body)} bytes, allowed {MAX_BODY_BYTES}")
    return body


def find_id_fault(name: str) -> str:
    """Returns why `name` cannot be an item id; empty if it can."""
    if not 1 <= len(name) <= MAX_ITEM_CHARS:
        return f"item id has {len(name)} characters, allowed 1 to {MAX_ITEM_CHARS}"
    # Cc: control characters with NUL, which PostgreSQL rejects. Cs: half a surrogate pair, which
    # UTF-8 cannot encode.
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        return "item id holds a control character or a lone surrogate"
    return ""


def find_job_fault(name: str) -> str:
    """Returns why `name` cannot be a job name; empty if it can."""
    if not _JOB_NAME.fullmatch(name):
        return f"job name is not 1 to {MAX_JOB_CHARS} of A-Z a-z 0-9 . _ -"
    if not name[0].isalnum():
        return "job name begins with neither letter nor digit"
    return ""


def check_job(name: str) -> str:
    """Returns a valid job name. Raises InputError for any other."""
    fault = find_job_fault(name)
    if fault:
        raise InputError(
            fault,
            got=repr(name[:80]),
            allowed="such as nightly-2026-11-21",
            fix="rename the job",
        )
    return name


def make_item(
    job: str,
    name: str,
    body: bytes,
    *,
    source: object,
) -> Item:
    """Makes an item from input. Raises InputError, which names its place in `source`."""
    fault = find_id_fault(name)
    if fault:
        raise InputError(
            fault,
            got=f"{name[:60]!r} in {source}",
            allowed="printable text",
            fix="rename the item",
        )
    require_size(name, len(body), source=source)
    return Item(job=job, id=name, body=body)


def require_size(name: str, size: int, *, source: object) -> None:
    """Raises InputError if a message cannot hold a body of this size."""
    if size > MAX_BODY_BYTES:
        raise InputError(
            "item is larger than a message may be",
            got=f"{name[:60]}: {size} bytes in {source}",
            allowed=f"at most {MAX_BODY_BYTES} bytes",
            fix="split it, or remove it",
        )
