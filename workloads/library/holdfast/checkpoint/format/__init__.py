"""The format: the JSON objects of a checkpoint. decoding.py reads them back without trusting them.

Each rank writes its tensors as one stream of bytes, cut into shards of bounded size, and a manifest
that lists them. COMMIT.json, written last, carries the sha256 of every manifest and one of itself;
a manifest carries the crc32c of every shard. So every byte is covered from the commit down, and
objects of two attempts, steps or runs do not fit together.

Checksums detect damage, not forgery. Forgery is detected with a key that writers of the bucket need
not have: with HOLDFAST_CHECKPOINT_KEY_FILE a commit carries an HMAC-SHA256, and a commit without it
is not restored. A bucket's writer can still delete the newest commits; the next restore reports
that (Restored.missing).

Decision: infra/decisions/0025.
"""

import hashlib
import hmac
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
# Marks a manifest with content that version 1 does not have: a reader of version 1 then reports
# another version, instead of a damaged checkpoint.
SCHEMA_2 = "holdfast.checkpoint/2"
_MARKS_OF_2 = (b'"$wrapped":', b'"$dtype":', b'"sha256":')
# These names on disk are older than the code's: a new name would make checkpoints unreadable, or
# drop them from the count.
SIGNATURE_FIELD = "seal"
COUNT_FIELD = "standing"
MIN_KEY_BYTES = 32
# 2**62 so that no sum of two leaves what a signed 64-bit offset can hold.
MAX_BYTES = 1 << 62

Json = Any
Sizes = tuple[int, ...]
"""One number for each axis of a tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A bounded stretch of a rank's stream of bytes, stored as one object."""

    bytes: int
    crc32c: str
    sha256: str = ""
    """Digest of a shard that checkpoints share: its object is named by it; empty: its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPart:
    """A box of one tensor, and the place of its bytes in the stream of its rank."""

    key: str
    dtype: str
    shape: Sizes
    """Shape of the whole tensor."""
    offset: Sizes
    """First element of this box."""
    extent: Sizes
    """Shape of this box."""
    at: int
    """Byte offset in the stream of the rank."""
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The shards and tensors of one rank."""

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
        fields = shallow_asdict(self)
        encoded = _encode({"schema": SCHEMA, **fields})
        # No false match: inside a JSON string the quotes would be escaped.
        if any(mark in encoded for mark in _MARKS_OF_2):
            return _encode({"schema": SCHEMA_2, **fields})
        return encoded

    @property
    def name(self) -> str:
        return object_names.manifest_object(
            self.run,
            self.step,
            self.attempt,
            self.rank,
        )

    @property
    def attempt_id(self) -> tuple[str, int, str]:
        return self.run, self.step, self.attempt

    @property
    def common_names(self) -> set[str]:
        """Names of the objects that other checkpoints of the run may name too."""
        digests = {shard.sha256 for shard in self.shards} - {""}
        return {object_names.common_object(self.run, digest) for digest in digests}

    def shard_name(self, index: int) -> str:
        digest = self.shards[index].sha256 if index < len(self.shards) else ""
        if digest:
            return object_names.common_object(self.run, digest)
        return object_names.shard_object(
            self.run,
            self.step,
            self.attempt,
            self.rank,
            index,
        )

    @property
    def length(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def stretches(self) -> list[slice]:
        """Return the range of the rank's stream that each shard holds, by shard."""
        slices: list[slice] = []
        start = 0
        for shard in self.shards:
            end = start + shard.bytes
            slices.append(slice(start, end))
            start = end
        return slices


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestDigest:
    """The length and digest of an encoded manifest."""

    length: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """The proof that a checkpoint exists, with the digests of its manifests."""

    run: str
    step: int
    attempt: str
    world_size: int
    total_bytes: int
    created: int
    """Unix seconds."""
    manifests: tuple[ManifestDigest, ...]
    """Digests of the manifests, by rank."""
    commit_count: int = 0
    """Number of commits that retention leaves, with this one: fewer show that some were deleted."""
    epoch: int = 0
    """Number of the start that wrote it; 0 if starts were not counted."""
    source: str = ""
    """Digest of the code that ran, as sha256:HEX; empty if the image has the code."""

    def encode(self) -> bytes:
        body = {"schema": SCHEMA, **shallow_asdict(self)}
        body[COUNT_FIELD] = body.pop("commit_count")
        if not self.source:
            del body["source"]
        encoded = _encode(body)
        digest = hex_digest(encoded)
        envelope: Json = {"body": body, "sha256": digest}
        signature = sign(encoded)
        if signature:
            envelope[SIGNATURE_FIELD] = signature
        # Readers cut the body out of these very bytes: the spelling of the envelope is part of the
        # format.
        return _encode(envelope)


def digest_manifest(manifest: bytes) -> ManifestDigest:
    return ManifestDigest(length=len(manifest), sha256=hex_digest(manifest))


def shallow_asdict(value: "DataclassInstance") -> dict[str, Json]:
    """Return the fields by name, for JSON.

    dataclasses.asdict would copy the values as well, which takes ten times as long as the JSON.
    """
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    # Version 1 does not know this field.
    if isinstance(value, Shard) and not value.sha256:
        del fields["sha256"]
    return fields


def _encode(value: Json) -> bytes:
    # One spelling of each value: digests and signatures are taken over these bytes.
    return json.dumps(
        value,
        default=shallow_asdict,
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    ).encode()


def hex_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def signing_key() -> bytes:
    """Read the key of HOLDFAST_CHECKPOINT_KEY_FILE; empty if commits are not signed.

    Raises InputError for a file that cannot be read, and for a key that is too short.
    """
    path = os.environ.get(ENV_KEY_FILE, "")
    if not path:
        return b""
    try:
        # Stripped: a secret made by an editor or `echo` ends in a newline on one machine and not on
        # another.
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise _key_error(f"{path} ({error.strerror})") from error
    if len(key) < MIN_KEY_BYTES:
        raise _key_error(f"{len(key)} bytes in {path}")
    return key


def sign(body: bytes) -> str:
    """Return the HMAC-SHA256 of `body` in hex; empty without a key."""
    # Read each time and never kept: a mounted secret is rotated without a restart.
    key = signing_key()
    if not key:
        return ""
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def signature_matches(body: bytes, signature: object) -> bool:
    """Return whether `signature` is that of `body`. Without a key every signature matches."""
    expected = sign(body)
    if not expected:
        return True
    if not isinstance(signature, str):
        return False
    # Compared in constant time: the time of an early exit would reveal the signature byte by byte.
    return hmac.compare_digest(expected.encode(), signature.encode())


def _key_error(got: str) -> InputError:
    return InputError(
        "key that signs checkpoints cannot be used",
        got=got,
        allowed=f"a readable file of at least {MIN_KEY_BYTES} bytes",
        fix=f"make one with `openssl rand -hex 32`, or unset {ENV_KEY_FILE}",
    )
