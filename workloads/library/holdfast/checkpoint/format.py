"""The format: what the JSON objects of a checkpoint hold. decoding.py reads them back without trusting them.

Each rank writes its tensors as one stream of bytes, cut into shards of bounded size, and a manifest that
lists them. COMMIT.json, written last, carries the sha256 of every manifest and one of itself; a manifest
carries the crc32c of every shard; where there is a key, a signature proves who wrote the commit. So every byte
is covered from the commit down, and objects of two attempts, steps or runs do not fit together.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint import signing
from holdfast.contract import object_names

SCHEMA = "holdfast.checkpoint/1"
# The name on disk is older than the code's: renaming it would make every signed checkpoint unreadable.
SIGNATURE_FIELD = "seal"

Json = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    bytes: int
    crc32c: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPart:
    """A box of one tensor, and where its bytes stand in the stream of its rank."""

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
        return _encode({"schema": SCHEMA, **asdict(self)})

    def shard_name(self, index: int) -> str:
        return object_names.shard_object(self.run, self.step, self.attempt, self.rank, index)

    @property
    def length(self) -> int:
        return sum(shard.bytes for shard in self.shards)


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
    standing: int = 0
    """How many commits retention leaves, this one included: fewer means that somebody deleted some."""
    epoch: int = 0
    """Number of the start that wrote it; 0 where nobody counted."""
    metric: float | None = None
    """What the trainer measured at this step, for retention."""

    def encode(self) -> bytes:
        body = {"schema": SCHEMA, **asdict(self)}
        encoded = _encode(body)
        signed = {SIGNATURE_FIELD: found} if (found := signing.signature_of(encoded)) else {}
        # Readers cut the body out of these very bytes: the spelling of the envelope is part of the format.
        return _encode({"body": body, "sha256": hex_digest(encoded), **signed})

    @property
    def prefix(self) -> str:
        return object_names.attempt_prefix(self.run, self.step, self.attempt)

    def manifest_name(self, rank: int) -> str:
        return object_names.manifest_object(self.run, self.step, self.attempt, rank)


def digest_of(manifest: bytes) -> ManifestDigest:
    return ManifestDigest(length=len(manifest), sha256=hex_digest(manifest))


def _encode(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def hex_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
