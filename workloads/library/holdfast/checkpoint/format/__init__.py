"""The format: what the JSON objects of a checkpoint hold. decoding.py reads them back without
trusting them.

Each rank writes its tensors as one stream of bytes, cut into shards of bounded size, and a manifest
that lists them. COMMIT.json, written last, carries the sha256 of every manifest and one of itself;
a manifest carries the crc32c of every shard. So every byte is covered from the commit down, and
objects of two attempts, steps or runs do not fit together. Checksums show damage; forgery shows
only by a key that writers of the bucket need not have: with HOLDFAST_CHECKPOINT_KEY_FILE a commit
carries an HMAC-SHA256, and one without it restores nothing. A bucket's writer can still delete the
newest commits, which the next restore reports (Restored.missing).

Decision: infra/decisions/0025.
"""

import hashlib
import hmac
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.support import object_names
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_KEY_FILE

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA = "holdfast.checkpoint/1"
# These names on disk are older than the code's: renaming them would make checkpoints unreadable, or
# uncounted.
SIGNATURE_FIELD = "seal"
COUNT_FIELD = "standing"
MIN_KEY_BYTES = 32
# 2**62 so that no sum of two leaves what a signed 64-bit offset can hold.
MAX_BYTES = 1 << 62

Json = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    bytes: int
    crc32c: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPart:
    """A box of one tensor, and where its bytes are in the stream of its rank."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offset: tuple[int, ...]
    """First element of this box."""
    extent: tuple[int, ...]
    """Shape of this box."""
    at: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    run: str
    step: int
    attempt: str
    rank: int
    world_size: int
    shards: tuple[Shard, ...]
    tensors: tuple[TensorPart, ...]
    values: Json
    """The state without its tensors, as this rank saw it."""

    def encode(self) -> bytes:
        return _encode({"schema": SCHEMA, **fields_of(self)})

    @property
    def name(self) -> str:
        return object_names.manifest_object(self.run, self.step, self.attempt, self.rank)

    @property
    def attempt_id(self) -> tuple[str, int, str]:
        return self.run, self.step, self.attempt

    def shard_name(self, index: int) -> str:
        return object_names.shard_object(self.run, self.step, self.attempt, self.rank, index)

    @property
    def length(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def stretches(self) -> list[slice]:
        """Which bytes of this rank's stream each shard holds."""
        ends = [*itertools.accumulate((shard.bytes for shard in self.shards), initial=0)]
        return [slice(*both) for both in itertools.pairwise(ends)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestDigest:
    length: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    run: str
    step: int
    attempt: str
    world_size: int
    total_bytes: int
    created: int
    """Unix seconds."""
    manifests: tuple[ManifestDigest, ...]
    """By rank."""
    commit_count: int = 0
    """How many commits retention leaves, this one included: fewer means that some were deleted."""
    epoch: int = 0
    """Number of the start that wrote it; 0 where starts were not counted."""

    def encode(self) -> bytes:
        body = {"schema": SCHEMA, **fields_of(self)}
        body[COUNT_FIELD] = body.pop("commit_count")
        encoded = _encode(body)
        signed = {SIGNATURE_FIELD: found} if (found := signature_of(encoded)) else {}
        # Readers cut the body out of these very bytes: the spelling of the envelope is part of the
        # format.
        return _encode(
            {
                "body": body,
                "sha256": hex_digest(encoded),
                **signed,
            }
        )


def digest_of(manifest: bytes) -> ManifestDigest:
    return ManifestDigest(length=len(manifest), sha256=hex_digest(manifest))


def fields_of(value: "DataclassInstance") -> dict[str, Json]:
    """For JSON. Not dataclasses.asdict: it copies all that is below, which takes ten times as long
    as the JSON does.
    """
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _encode(value: Json) -> bytes:
    # One spelling of each value: digests and signatures are taken over these bytes.
    return json.dumps(
        value,
        default=fields_of,
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    ).encode()


def hex_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def signing_key() -> bytes:
    """Of HOLDFAST_CHECKPOINT_KEY_FILE; empty: commits are not signed. Raises InputError for one
    that cannot be used.
    """
    path = os.environ.get(ENV_KEY_FILE, "")
    if not path:
        return b""
    try:
        # Stripped: a secret made by an editor or `echo` ends in a newline on one machine and not on
        # another.
        found = Path(path).read_bytes().strip()
    except OSError as error:
        raise _unusable(f"{path} ({error.strerror})") from error
    if len(found) < MIN_KEY_BYTES:
        raise _unusable(f"{len(found)} bytes in {path}")
    return found


def signature_of(body: bytes) -> str:
    """Empty without a key."""
    # Read each time and never kept: a mounted secret is rotated without a restart.
    secret = signing_key()
    return hmac.new(secret, body, hashlib.sha256).hexdigest() if secret else ""


def signature_matches(body: bytes, signature: object) -> bool:
    """Whether `signature` is this body's; every one matches where there is no key."""
    expected = signature_of(body)
    # Compared in constant time: the time of an early exit would reveal the signature byte by byte.
    return not expected or (
        isinstance(signature, str) and hmac.compare_digest(expected.encode(), signature.encode())
    )


def _unusable(got: str) -> InputError:
    return InputError(
        "key that signs checkpoints cannot be used",
        got=got,
        allowed=f"a readable file of at least {MIN_KEY_BYTES} bytes",
        fix=f"make one with `openssl rand -hex 32`, or unset {ENV_KEY_FILE}",
    )
