"""Reading commits and manifests that anybody may have written: bytes first, then types and bounds,
then meaning.

A commit's digest and signature are compared over its bytes as they were read, before anything
parses them: who has no key reaches no parser. Every field has a type and a bound; what is odd
raises Damaged, so that restore passes over it to the checkpoint before. What several objects must
agree on is soundness.py's.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import (
    COUNT_FIELD,
    MAX_BYTES,
    SCHEMA,
    SIGNATURE_FIELD,
    Commit,
    Json,
    Manifest,
    ManifestDigest,
    Shard,
    TensorPart,
    digest_of,
    hex_digest,
    signature_matches,
)
from holdfast.checkpoint.format.soundness import check_values
from holdfast.support import object_names
from holdfast.support.errors import InputError
from holdfast.support.printable import printable

# An object may have been replaced by anything: what is larger is not read into memory.
MAX_COMMIT_BYTES = 64 << 20
MAX_MANIFEST_BYTES = 256 << 20
MAX_RANKS = 100_000
MAX_SHARDS = 100_000
MAX_STEP = 10**10 - 1
# PyTorch's own.
MAX_AXES = 64
MAX_KEY_CHARACTERS = 4_096

_HEAD = b'{"body":'
_TAIL = re.compile(
    rb'(?:,"%s":"([0-9a-f]{64})")?,"sha256":"([0-9a-f]{64})"\}\Z' % SIGNATURE_FIELD.encode()
)
_TAIL_BYTES = 200
_HEX64, _HEX8, _ATTEMPT = (re.compile(rf"[0-9a-f]{{{length}}}") for length in (64, 8, 12))
_OTHER_VERSION = re.compile(r"holdfast\.checkpoint/[0-9]{1,6}")

T = TypeVar("T")


def decode_commit(data: bytes, *, run: str, step: int) -> Commit:
    """Raises Damaged; InputError where the commit is sound but of another format version."""
    body = _parse(_verified_body(data), "commit")
    commit = _build("commit", lambda: _commit(body))
    if commit.run != run:
        raise Damaged(f"it belongs to another run, {commit.run}: a copied folder is not a new run")
    if commit.step != step:
        raise Damaged(f"the commit belongs to step {commit.step}")
    return commit


def _verified_body(data: bytes) -> bytes:
    """The bytes that digest and signature cover."""
    tail = _TAIL.search(data, max(0, len(data) - _TAIL_BYTES))
    if tail is None or not data.startswith(_HEAD):
        raise Damaged("the commit is not whole")
    body = data[len(_HEAD) : tail.start()]
    signature, digest = tail.groups()
    if hex_digest(body) != digest.decode():
        raise Damaged("the commit does not match its own digest")
    if not signature_matches(body, signature.decode() if signature else None):
        raise Damaged(
            "the commit is not signed with this run's key: forged, or written without the key"
        )
    return body


def decode_manifest(data: bytes, commit: Commit, rank: int) -> Manifest:
    """Raises Damaged; InputError for another format version."""
    # Before it is parsed: nothing of a manifest is used unless it is the one that the commit names.
    if digest_of(data) != commit.manifests[rank]:
        raise Damaged(f"the manifest of rank {rank} is not the one that was committed")
    manifest = parse_manifest(data)
    expected = (commit.run, commit.step, commit.attempt, rank, commit.world_size)
    if (
        manifest.run,
        manifest.step,
        manifest.attempt,
        manifest.rank,
        manifest.world_size,
    ) != expected:
        raise Damaged(f"the manifest of rank {rank} belongs to another attempt")
    return manifest


def parse_manifest(data: bytes) -> Manifest:
    """A manifest as its rank wrote it, before there is a commit to compare it with. Raises Damaged;
    InputError for another format version.
    """
    body = _parse(data, "manifest")
    manifest = _build("manifest", lambda: _manifest(body))
    # Parsed and not trusted: offsets from a manifest become addresses of memory.
    length = manifest.length
    for part in manifest.tensors:
        axes = zip(part.offset, part.extent, part.shape, strict=True)
        if part.at + part.bytes > length or any(
            start + extent > size for start, extent, size in axes
        ):
            raise Damaged(f"tensor {printable(part.key, 80)} is outside its shards or its shape")
    return manifest


def _commit(body: Mapping[str, Json]) -> Commit:
    manifests = tuple(
        ManifestDigest(
            length=_count(m, "length", MAX_MANIFEST_BYTES), sha256=_matching(m, "sha256", _HEX64)
        )
        for m in _list(body, "manifests", MAX_RANKS)
    )
    world_size = _count(body, "world_size", MAX_RANKS)
    if not manifests or len(manifests) != world_size:
        raise ValueError(f"{len(manifests)} manifests of {world_size} ranks")
    return Commit(
        run=object_names.checked_run(_text(body, "run")),
        step=_count(body, "step", MAX_STEP),
        attempt=_matching(body, "attempt", _ATTEMPT),
        world_size=world_size,
        total_bytes=_count(body, "total_bytes"),
        created=_count(body, "created"),
        manifests=manifests,
        # A commit without these stays readable; it only takes no part in counting and fencing.
        commit_count=_count(body, COUNT_FIELD) if COUNT_FIELD in body else 0,
        epoch=_count(body, "epoch") if "epoch" in body else 0,
    )


def _manifest(body: Mapping[str, Json]) -> Manifest:
    return Manifest(
        run=object_names.checked_run(_text(body, "run")),
        step=_count(body, "step", MAX_STEP),
        attempt=_matching(body, "attempt", _ATTEMPT),
        rank=_count(body, "rank", MAX_RANKS),
        world_size=_count(body, "world_size", MAX_RANKS),
        shards=tuple(
            Shard(bytes=_count(s, "bytes"), crc32c=_matching(s, "crc32c", _HEX8))
            for s in _list(body, "shards", MAX_SHARDS)
        ),
        tensors=tuple(_part(t) for t in _list(body, "tensors", MAX_MANIFEST_BYTES)),
        values=check_values(body["values"]),
    )


def _part(body: Mapping[str, Json]) -> TensorPart:
    shape, offset, extent = (_sizes(body, field) for field in ("shape", "offset", "extent"))
    if not len(shape) == len(offset) == len(extent):
        raise ValueError("ranks of shape, offset and extent differ")
    return TensorPart(
        key=_text(body, "key"),
        dtype=_text(body, "dtype"),
        shape=shape,
        offset=offset,
        extent=extent,
        at=_count(body, "at"),
        bytes=_count(body, "bytes"),
    )


# Bounded types. `type(x) is int`, since True is an instance of int and 1.0 equals it.


def _count(body: Mapping[str, Json], name: str, most: int = MAX_BYTES) -> int:
    value = body[name]
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is no number from 0 to {most}")
    return value


def _list(body: Mapping[str, Json], name: str, most: int) -> list[Any]:
    value = body[name]
    if type(value) is not list or len(value) > most:
        raise ValueError(f"{name} is no list of at most {most}")
    return value


def _sizes(body: Mapping[str, Json], name: str) -> tuple[int, ...]:
    sizes = _list(body, name, MAX_AXES)
    if not all(type(size) is int and 0 <= size <= MAX_BYTES for size in sizes):
        raise ValueError(f"{name} holds no sizes")
    return tuple(sizes)


def _text(body: Mapping[str, Json], name: str) -> str:
    value = body[name]
    if type(value) is not str or len(value) > MAX_KEY_CHARACTERS:
        raise ValueError(f"{name} is no text of at most {MAX_KEY_CHARACTERS} characters")
    return value


def _matching(body: Mapping[str, Json], name: str, pattern: re.Pattern[str]) -> str:
    value = _text(body, name)
    if not pattern.fullmatch(value):
        raise ValueError(f"{name} does not have the form {pattern.pattern}")
    return value


def _check_schema(body: Mapping[str, Json]) -> None:
    found = body.get("schema")
    if found == SCHEMA:
        return
    # Any other text is no version of this format; a refusal here would be a way to block every
    # restore.
    if not isinstance(found, str) or not _OTHER_VERSION.fullmatch(found):
        raise Damaged("it has no schema of a checkpoint")
    raise InputError(
        "checkpoint has another format version",
        got=found,
        allowed=SCHEMA,
        fix=(
            "read it with the release that wrote it (`checkpoints export`), or choose another run"
            " name"
        ),
    )


def _build(what: str, make: Callable[[], T]) -> T:
    # InputError is a ValueError: a bad name inside a damaged object is damage and no mistake of the
    # user's.
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the {what} is malformed: {printable(repr(error), 300)}") from error


def _parse(data: bytes, what: str) -> Mapping[str, Json]:
    """Raises Damaged; InputError for another format version."""
    # json takes NaN, Infinity and 1e999, none of which is JSON or can be written back.
    try:
        found = json.loads(data, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the {what} is no JSON: {printable(str(error), 200)}") from error
    if not isinstance(found, dict):
        raise Damaged(f"the {what} is no JSON object")
    _check_schema(found)
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is no finite number")
    return value
