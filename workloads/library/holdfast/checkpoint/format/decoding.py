"""Decode commits and manifests that anybody may have written: bytes, then types, then meaning.

A commit's digest and signature are compared over its bytes as they were read, before anything
parses them: data without a valid signature never reaches the parser. Every field has a type and a
bound. Anything unexpected raises Damaged, so that restore falls back to the checkpoint before.
validation.py checks what several objects must agree on.
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
    SCHEMA_2,
    SIGNATURE_FIELD,
    Commit,
    Json,
    Manifest,
    ManifestDigest,
    Shard,
    Sizes,
    TensorPart,
    digest_manifest,
    hex_digest,
    signature_matches,
)
from holdfast.checkpoint.format.validation import check_values
from holdfast.support import object_names
from holdfast.support.errors import InputError
from holdfast.support.printable import printable
from holdfast.vocabulary.job_identity import SOURCE_DIGEST

# An object may have been replaced by anything: a larger one is not read into memory.
MAX_COMMIT_BYTES = 64 << 20
MAX_MANIFEST_BYTES = 256 << 20
MAX_RANKS = 100_000
MAX_SHARDS = 100_000
MAX_STEP = 10**10 - 1
# The limit of PyTorch.
MAX_AXES = 64
MAX_KEY_CHARACTERS = 4_096

_HEAD = b'{"body":'
_TAIL = re.compile(
    rb'(?:,"%s":"([0-9a-f]{64})")?,"sha256":"([0-9a-f]{64})"\}\Z' % SIGNATURE_FIELD.encode()
)
_TAIL_BYTES = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CRC32C = re.compile(r"[0-9a-f]{8}")
_ATTEMPT = re.compile(r"[0-9a-f]{12}")
_OTHER_VERSION = re.compile(r"holdfast\.checkpoint/[0-9]{1,6}")

Body = Mapping[str, Json]
T = TypeVar("T")


def decode_commit(
    data: bytes,
    *,
    run: str,
    step: int,
) -> Commit:
    """Decode the commit of a step.

    Raises Damaged; InputError if the commit is intact but of another format version.
    """
    body = _parse(_verify_body(data), "commit", (SCHEMA,))
    commit = _build("commit", lambda: _make_commit(body))
    if commit.run != run:
        raise Damaged(
            f"it belongs to another run, {commit.run}: a copied folder is not a new run; copy it"
            f" with: holdfast checkpoints branch URL --run {run} --to NEW"
        )
    if commit.step != step:
        raise Damaged(f"the commit belongs to step {commit.step}")
    return commit


def _verify_body(data: bytes) -> bytes:
    """Return the bytes of a commit that its digest and signature cover. Raises Damaged."""
    tail_start = max(0, len(data) - _TAIL_BYTES)
    tail = _TAIL.search(data, tail_start)
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


def decode_manifest(
    data: bytes,
    commit: Commit,
    rank: int,
) -> Manifest:
    """Decode the manifest of a rank in a commit.

    Raises Damaged; InputError for another format version.
    """
    # Compared before it is parsed: a manifest is used only if it is the one that the commit names.
    if digest_manifest(data) != commit.manifests[rank]:
        raise Damaged(f"the manifest of rank {rank} is not the one that was committed")
    manifest = parse_manifest(data)
    same_attempt = manifest.attempt_id == (commit.run, commit.step, commit.attempt)
    same_rank = manifest.rank == rank
    same_size = manifest.world_size == commit.world_size
    if not same_attempt or not same_rank or not same_size:
        raise Damaged(f"the manifest of rank {rank} belongs to another attempt")
    return manifest


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest as its rank wrote it, without a commit to compare it with.

    Raises Damaged; InputError for another format version.
    """
    body = _parse(data, "manifest", (SCHEMA, SCHEMA_2))
    manifest = _build("manifest", lambda: _make_manifest(body))
    # Offsets from a manifest become addresses of memory.
    length = manifest.length
    for part in manifest.tensors:
        end = part.at + part.bytes
        if end > length or _exceeds_shape(part):
            raise Damaged(f"tensor {printable(part.key, 80)} is outside its shards or its shape")
    return manifest


def _exceeds_shape(part: TensorPart) -> bool:
    axes = zip(
        part.offset,
        part.extent,
        part.shape,
        strict=True,
    )
    return any(start + extent > size for start, extent, size in axes)


def _make_commit(body: Body) -> Commit:
    items = _get_list(body, "manifests", MAX_RANKS)
    manifests = tuple(_make_digest(item) for item in items)
    world_size = _get_int(body, "world_size", MAX_RANKS)
    if not manifests or len(manifests) != world_size:
        raise ValueError(f"{len(manifests)} manifests of {world_size} ranks")
    return Commit(
        run=object_names.checked_run(_get_text(body, "run")),
        step=_get_int(body, "step", MAX_STEP),
        attempt=_get_match(body, "attempt", _ATTEMPT),
        world_size=world_size,
        total_bytes=_get_int(body, "total_bytes"),
        created=_get_int(body, "created"),
        manifests=manifests,
        # A commit without these stays readable; it only takes no part in counting and fencing.
        commit_count=_get_int(body, COUNT_FIELD) if COUNT_FIELD in body else 0,
        epoch=_get_int(body, "epoch") if "epoch" in body else 0,
        source=_get_match(body, "source", SOURCE_DIGEST) if "source" in body else "",
    )


def _make_digest(body: Body) -> ManifestDigest:
    return ManifestDigest(
        length=_get_int(body, "length", MAX_MANIFEST_BYTES),
        sha256=_get_match(body, "sha256", _SHA256),
    )


def _make_manifest(body: Body) -> Manifest:
    shards = _get_list(body, "shards", MAX_SHARDS)
    parts = _get_list(body, "tensors", MAX_MANIFEST_BYTES)
    return Manifest(
        run=object_names.checked_run(_get_text(body, "run")),
        step=_get_int(body, "step", MAX_STEP),
        attempt=_get_match(body, "attempt", _ATTEMPT),
        rank=_get_int(body, "rank", MAX_RANKS),
        world_size=_get_int(body, "world_size", MAX_RANKS),
        shards=tuple(_make_shard(shard) for shard in shards),
        tensors=tuple(_make_part(part) for part in parts),
        values=check_values(body["values"]),
    )


def _make_shard(body: Body) -> Shard:
    return Shard(
        bytes=_get_int(body, "bytes"),
        crc32c=_get_match(body, "crc32c", _CRC32C),
        sha256=_get_match(body, "sha256", _SHA256) if "sha256" in body else "",
    )


def _make_part(body: Body) -> TensorPart:
    shape = _get_sizes(body, "shape")
    offset = _get_sizes(body, "offset")
    extent = _get_sizes(body, "extent")
    if not len(shape) == len(offset) == len(extent):
        raise ValueError("shape, offset and extent differ in their number of axes")
    return TensorPart(
        key=_get_text(body, "key"),
        dtype=_get_text(body, "dtype"),
        shape=shape,
        offset=offset,
        extent=extent,
        at=_get_int(body, "at"),
        bytes=_get_int(body, "bytes"),
    )


# Bounded types. `type(x) is int`, since True is an instance of int and 1.0 equals it.


def _get_int(
    body: Body,
    name: str,
    maximum: int = MAX_BYTES,
) -> int:
    value = body[name]
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"{name} is not a number from 0 to {maximum}")
    return value


def _get_list(
    body: Body,
    name: str,
    max_length: int,
) -> list[Any]:
    value = body[name]
    if type(value) is not list or len(value) > max_length:
        raise ValueError(f"{name} is not a list of at most {max_length}")
    return value


def _get_sizes(body: Body, name: str) -> Sizes:
    sizes = _get_list(body, name, MAX_AXES)
    for size in sizes:
        if type(size) is not int or not 0 <= size <= MAX_BYTES:
            raise ValueError(f"{name} holds something else than sizes")
    return tuple(sizes)


def _get_text(body: Body, name: str) -> str:
    value = body[name]
    if type(value) is not str or len(value) > MAX_KEY_CHARACTERS:
        raise ValueError(f"{name} is not a text of at most {MAX_KEY_CHARACTERS} characters")
    return value


def _get_match(
    body: Body,
    name: str,
    pattern: re.Pattern[str],
) -> str:
    value = _get_text(body, name)
    if not pattern.fullmatch(value):
        raise ValueError(f"{name} does not have the form {pattern.pattern}")
    return value


def _check_schema(body: Body, schemas: tuple[str, ...]) -> None:
    schema = body.get("schema")
    if schema in schemas:
        return
    # Other text is no version of this format. It counts as damage, so that restore goes on to an
    # older checkpoint: otherwise such a text would block every restore.
    if not isinstance(schema, str) or not _OTHER_VERSION.fullmatch(schema):
        raise Damaged("it has no schema of a checkpoint")
    raise InputError(
        "checkpoint has another format version",
        got=schema,
        allowed=", ".join(schemas),
        fix=(
            "read it with the release that wrote it (`checkpoints export`), or choose another run"
            " name"
        ),
    )


def _build(kind: str, make: Callable[[], T]) -> T:
    # InputError is a ValueError: a bad name inside a damaged object is damage and no mistake of the
    # user's.
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the {kind} is malformed: {printable(repr(error), 300)}") from error


def _parse(
    data: bytes,
    kind: str,
    schemas: tuple[str, ...],
) -> Body:
    """Parse an object of one of the schemas; `kind` names it in errors.

    Raises Damaged; InputError for another format version.
    """
    # json takes NaN, Infinity and 1e999, none of which is JSON or can be written back.
    try:
        body = json.loads(data, parse_constant=_parse_float, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the {kind} is not JSON: {printable(str(error), 200)}") from error
    if not isinstance(body, dict):
        raise Damaged(f"the {kind} is not a JSON object")
    _check_schema(body, schemas)
    return body


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value
