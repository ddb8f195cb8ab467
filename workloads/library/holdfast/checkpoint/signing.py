"""The seal of a commit: an HMAC by a key that writers of the bucket need not have.

Called by format.py for every commit written and read. Checksums tell damage; only a key tells forgery by
somebody who can write to the bucket. HOLDFAST_CHECKPOINT_KEY_FILE names a file with the key, such as a
mounted secret, the same on every rank: its content goes into no log, argument or checkpoint. With a key,
a commit without its seal restores nothing. A bucket's writer can still delete the newest commits, which the
next restore tells (Restored.missing): object versions and retention of the bucket are against it.
"""

import hashlib
import hmac
import os
from pathlib import Path

from holdfast.contract.errors import InputError

ENV_KEY_FILE = "HOLDFAST_CHECKPOINT_KEY_FILE"
MIN_KEY_BYTES = 32


def key() -> bytes:
    """Empty: commits are not sealed."""
    path = os.environ.get(ENV_KEY_FILE, "")
    if not path:
        return b""
    try:
        found = Path(path).read_bytes().strip()
    except OSError as error:
        raise _unusable(f"{path} ({error.strerror})") from error
    if len(found) < MIN_KEY_BYTES:
        raise _unusable(f"{len(found)} bytes in {path}")
    return found


def seal_of(body: bytes) -> str:
    """Empty without a key."""
    secret = key()
    return hmac.new(secret, body, hashlib.sha256).hexdigest() if secret else ""


def holds(body: bytes, seal: object) -> bool:
    """Whether `seal` is this body's; every seal holds where there is no key."""
    expected = seal_of(body)
    return not expected or (isinstance(seal, str) and hmac.compare_digest(expected.encode(), seal.encode()))


def _unusable(got: str) -> InputError:
    return InputError(
        "key that seals checkpoints cannot be used",
        got=got,
        allowed=f"a readable file of at least {MIN_KEY_BYTES} bytes",
        fix=f"make one with `openssl rand -hex 32`, or unset {ENV_KEY_FILE}",
    )
