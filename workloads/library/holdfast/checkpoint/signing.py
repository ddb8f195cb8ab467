"""The signature of a commit: an HMAC-SHA256 by a key that writers of the bucket need not have.

Checksums show damage; only a key shows forgery by somebody who can write to the bucket. HOLDFAST_CHECKPOINT_KEY_FILE names a file with the key, such as a
mounted secret, the same on every rank: its content goes into no log, argument or checkpoint. With a key,
a commit without its signature restores nothing. A bucket's writer can still delete the newest commits, which
the next restore reports (Restored.missing): object versions and retention of the bucket are against it.
"""

# Why it is so: infra/decisions/0025.

import hashlib
import hmac
import os
from pathlib import Path

from holdfast.contract.environment import ENV_KEY_FILE
from holdfast.contract.errors import InputError

MIN_KEY_BYTES = 32


def key() -> bytes:
    """Empty: commits are not signed."""
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


def signature_of(body: bytes) -> str:
    """Empty without a key."""
    # Read each time and never kept: a mounted secret is turned over without a restart.
    secret = key()
    return hmac.new(secret, body, hashlib.sha256).hexdigest() if secret else ""


def matches(body: bytes, signature: object) -> bool:
    """Whether `signature` is this body's; every one matches where there is no key."""
    expected = signature_of(body)
    # Compared in constant time: the time of an early exit would give the signature away byte by byte.
    return not expected or (isinstance(signature, str) and hmac.compare_digest(expected.encode(), signature.encode()))


def _unusable(got: str) -> InputError:
    return InputError(
        "key that signs checkpoints cannot be used",
        got=got,
        allowed=f"a readable file of at least {MIN_KEY_BYTES} bytes",
        fix=f"make one with `openssl rand -hex 32`, or unset {ENV_KEY_FILE}",
    )
