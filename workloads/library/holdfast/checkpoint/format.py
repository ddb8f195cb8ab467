"""The format: what the JSON objects of a checkpoint hold, and how they are read without being trusted.

Each rank writes its tensors as one stream of bytes, cut into shards of bounded size, and a manifest that
lists them. COMMIT.json, written last, carries the sha256 of every manifest and one of itself; a manifest
carries the crc32c of every shard; where there is a key, a signature proves who wrote the commit. So every byte
is covered from the commit down, and objects of two attempts, steps or runs do not fit together.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from holdfast.checkpoint import signing
from holdfast.checkpoint.errors import Damaged
from holdfast.contract import object_names
from holdfast.contract.errors import InputError

SCHEMA = "holdfast.checkpoint/1"
# A manifest may have been replaced by anything: what is larger is not read into memory.
MAX_JSON_BYTES = 512 << 20
# The name on disk is older than the code's: renaming it would make every signed checkpoint unreadable.
SIGNATURE_FIELD = "seal"

Json = Any
T = TypeVar("T")


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

    def encode(self) -> bytes:
        body = {"schema": SCHEMA, **asdict(self)}
        encoded = _encode(body)
        signed = {SIGNATURE_FIELD: found} if (found := signing.signature_of(encoded)) else {}
        return _encode({"body": body, "sha256": _digest(encoded), **signed})

    def manifest_name(self, rank: int) -> str:
        return object_names.manifest_object(self.run, self.step, self.attempt, rank)


def digest_of(manifest: bytes) -> ManifestDigest:
    return ManifestDigest(length=len(manifest), sha256=_digest(manifest))


def decode_commit(data: bytes, *, run: str, step: int) -> Commit:
    """Raises Damaged; InputError where the commit is sound but of another format version."""
    envelope = _object(_parse(data, "commit"), "commit")
    body = _object(envelope.get("body"), "commit")
    # Digest before schema: a flipped bit in the version must count as damage, not as another format.
    if envelope.get("sha256") != _digest(_encode(body)):
        raise Damaged("the commit does not match its own digest")
    if not signing.matches(_encode(body), envelope.get(SIGNATURE_FIELD)):
        raise Damaged("the commit is not signed with this run's key: forged, or written without the key")
    _checked_schema(body)
    commit = _build("commit", lambda: _commit(body))
    if commit.run != run:
        raise _other_run(commit.run, run)
    if commit.step != step:
        raise Damaged(f"the commit belongs to step {commit.step}")
    return commit


def _other_run(found: str, run: str) -> InputError:
    return InputError(
        "checkpoint belongs to another run",
        got=f"run {found}",
        allowed=f"run {run}",
        fix="resume under the run's own name: objects carry it, so a copied folder is not a new run",
    )


def decode_manifest(data: bytes, commit: Commit, rank: int) -> Manifest:
    # Before it is parsed: nothing of a manifest is used unless it is the one that the commit names.
    if digest_of(data) != commit.manifests[rank]:
        raise Damaged(f"the manifest of rank {rank} is not the one that was committed")
    manifest = parse_manifest(data)
    expected = (commit.run, commit.step, commit.attempt, rank, commit.world_size)
    if (manifest.run, manifest.step, manifest.attempt, manifest.rank, manifest.world_size) != expected:
        raise Damaged(f"the manifest of rank {rank} belongs to another attempt")
    return manifest


def parse_manifest(data: bytes) -> Manifest:
    """A manifest as its rank wrote it, before there is a commit to compare it with."""
    body = _object(_parse(data, "manifest"), "manifest")
    _checked_schema(body)
    manifest = _build("manifest", lambda: _manifest(body))
    # Parsed and not trusted: offsets from a manifest become addresses of memory.
    length = manifest.length
    for part in manifest.tensors:
        if not 0 <= part.at <= part.at + part.bytes <= length or not _inside(part):
            raise Damaged(f"tensor {part.key} lies outside its shards or its shape")
    return manifest


def _inside(part: TensorPart) -> bool:
    boxes = zip(part.offset, part.extent, part.shape, strict=True)
    return all(0 <= start <= start + length <= size for start, length, size in boxes)


def _commit(body: Mapping[str, Json]) -> Commit:
    manifests = tuple(ManifestDigest(length=int(m["length"]), sha256=str(m["sha256"])) for m in body["manifests"])
    commit = Commit(
        run=object_names.checked_run(body["run"]),
        step=int(body["step"]),
        attempt=str(body["attempt"]),
        world_size=int(body["world_size"]),
        total_bytes=int(body["total_bytes"]),
        created=int(body["created"]),
        manifests=manifests,
        # A commit without these two stays readable; it only takes no part in counting and fencing.
        standing=int(body.get("standing", 0)),
        epoch=int(body.get("epoch", 0)),
    )
    object_names.attempt_prefix(commit.run, commit.step, commit.attempt)
    # The checksum covers the body, but not that its author was right: lengths are compared before they index.
    if len(manifests) != commit.world_size or commit.step < 0:
        raise ValueError("counts disagree")
    return commit


def _manifest(body: Mapping[str, Json]) -> Manifest:
    return Manifest(
        run=object_names.checked_run(body["run"]),
        step=int(body["step"]),
        attempt=str(body["attempt"]),
        rank=int(body["rank"]),
        world_size=int(body["world_size"]),
        shards=tuple(Shard(bytes=int(s["bytes"]), crc32c=str(s["crc32c"])) for s in body["shards"]),
        tensors=tuple(_part(t) for t in body["tensors"]),
        values=body["values"],
    )


def _part(body: Mapping[str, Json]) -> TensorPart:
    shape, offset, extent = (tuple(int(n) for n in body[field]) for field in ("shape", "offset", "extent"))
    if not len(shape) == len(offset) == len(extent):
        raise ValueError("ranks of shape, offset and extent differ")
    return TensorPart(
        key=str(body["key"]),
        dtype=str(body["dtype"]),
        shape=shape,
        offset=offset,
        extent=extent,
        at=int(body["at"]),
        bytes=int(body["bytes"]),
    )


def _checked_schema(body: Mapping[str, Json]) -> None:
    if body.get("schema") != SCHEMA:
        raise InputError(
            "checkpoint is of another format version",
            got=str(body.get("schema"))[:80],
            allowed=SCHEMA,
            fix="read it with the release that wrote it (`checkpoints export`), or choose another run name",
        )


def _build(what: str, make: Callable[[], T]) -> T:
    # InputError is a ValueError: a bad name inside a damaged object is damage and no mistake of the user's.
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise Damaged(f"the {what} is malformed: {error!r}"[:300]) from error


def _parse(data: bytes, what: str) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the {what} is no JSON: {error}"[:200]) from error


def _object(value: Json, what: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise Damaged(f"the {what} is no JSON object")
    return value


def _encode(value: Json) -> bytes:
    # One spelling: digest and signature are computed again from the parsed body, to the byte.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
