"""Forged checkpoints with matching digests, by an author who can write to the bucket.

The author may have the key or not. Each forgery takes the objects of a commit that the library
wrote, makes the change that it is named for, and computes digests and signature again, as its
author's own tools would.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.checkpoint import format as signing
from holdfast.checkpoint.stores.storage import crc32c

Change = Callable[["Forged"], None]
SHARD = "rank-00000-00000.bin"


@dataclass(kw_only=True)
class Forged:
    """The parts of a checkpoint that a forgery may change."""

    folder: Path
    """Folder of one step."""
    commit: dict[str, Any]
    manifest: dict[str, Any]
    """The manifest of rank 0."""
    body: bytes | None = None
    """Replaces the encoded commit with bytes that are not JSON of the library."""
    after: list[Callable[[Path], None]] = field(default_factory=list)
    """Changes to the attempt's folder once everything is written."""

    @property
    def attempt(self) -> Path:
        return self.folder / self.commit["attempt"]

    @property
    def values(self) -> dict[str, Any]:
        return self.manifest["values"]

    @property
    def largest(self) -> dict[str, Any]:
        return max(self.manifest["tensors"], key=lambda part: part["bytes"])


def encode_json(value: Any) -> bytes:
    """Encodes a value as JSON with sorted keys and without spaces."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
    ).encode()


def forge(folder: Path, change: Change) -> None:
    """Change the checkpoint in `folder`, and sign it if this process has a key."""
    path = folder / "COMMIT.json"
    commit = json.loads(path.read_bytes())["body"]
    manifest_path = folder / commit["attempt"] / "rank-00000.json"
    forged = Forged(
        folder=folder,
        commit=commit,
        manifest=json.loads(manifest_path.read_bytes()),
    )
    change(forged)
    manifest_bytes = encode_json(forged.manifest)
    manifest_path.write_bytes(manifest_bytes)
    digest = {
        "length": len(manifest_bytes),
        "sha256": hashlib.sha256(manifest_bytes).hexdigest(),
    }
    digests = forged.commit["manifests"]
    if any(isinstance(item, dict) for item in digests):
        digests[0] = digest
    body = encode_json(forged.commit) if forged.body is None else forged.body
    path.write_bytes(envelope(body))
    for change_folder in forged.after:
        change_folder(forged.attempt)


def envelope(body: bytes) -> bytes:
    signature = signing.sign(body)
    seal = b',"seal":"%s"' % signature.encode() if signature else b""
    digest = hashlib.sha256(body).hexdigest().encode()
    return b'{"body":%s%s,"sha256":"%s"}' % (body, seal, digest)


def _update(attribute: str, **fields: Any) -> Change:
    return lambda forged: getattr(forged, attribute).update(fields)


_part = partial(_update, "largest")
_values = partial(_update, "values")
_commit = partial(_update, "commit")
_manifest = partial(_update, "manifest")


def _body(old: bytes, new: bytes) -> Change:
    def change(forged: Forged) -> None:
        forged.body = encode_json(forged.commit).replace(old, new, 1)
        assert forged.body != encode_json(forged.commit)

    return change


def _overlap_parts(forged: Forged) -> None:
    parts = [part for part in forged.manifest["tensors"] if part["bytes"]]
    parts[0]["at"] = parts[1]["at"]


def _remove_tensor(forged: Forged) -> None:
    forged.manifest["tensors"].remove(forged.largest)


def _enlarge(forged: Forged) -> None:
    """Claim a terabyte. All descriptions agree; only the stored object is small."""
    part = forged.largest
    part.update(
        shape=[1 << 40],
        offset=[0],
        extent=[1 << 40],
        dtype="uint8",
        bytes=1 << 40,
    )
    forged.manifest["shards"] = [{"bytes": 1 << 41, "crc32c": "00000000"}]
    forged.commit["total_bytes"] = 1 << 41


def _use_sixty_axes(forged: Forged) -> None:
    part = forged.largest
    parts = forged.manifest["tensors"]
    parts.remove(part)
    for corner in (0, 1):
        box = {
            "dtype": "uint8",
            "shape": [2] * 60,
            "offset": [corner] * 60,
            "extent": [1] * 60,
            "bytes": 1,
            "at": part["at"] + corner,
        }
        parts.append(part | box)


def _replace_file(name: str, make: Callable[[Path], object]) -> Change:
    def replace(attempt: Path) -> None:
        (attempt / name).unlink()
        make(attempt / name)

    return lambda forged: forged.after.append(replace)


def spoil_random_state(forged: Forged) -> None:
    """Move the position of Python's generator out of its list.

    The position is in the bytes of a tensor, so behind a checksum.
    """
    tensors = forged.manifest["tensors"]
    (part,) = [part for part in tensors if part["key"] == "__rng__/python/state"]
    shard = forged.attempt / SHARD
    data = bytearray(shard.read_bytes())
    end = part["at"] + part["bytes"]
    data[end - 8 : end] = (10**9).to_bytes(8, "little")
    shard.write_bytes(data)
    forged.manifest["shards"][0]["crc32c"] = crc32c(memoryview(data))


DEEP = 100_000
FORGERIES: dict[str, Change] = {
    # Crashes of a parser.
    "NaN": _body(b'"created":', b'"created":NaN,"x":'),
    "1e999": _body(b'"created":', b'"created":1e999,"x":'),
    "nested without end": _body(
        b'"created":', b'"x":' + b"[" * DEEP + b"]" * DEEP + b',"created":'
    ),
    "an integer of 5,000 digits": _body(b'"created":', b'"created":1' + b"0" * 5_000 + b',"x":'),
    "no JSON": lambda forged: setattr(forged, "body", b"\xff\x00"),
    "a list": lambda forged: setattr(forged, "body", b"[]"),
    # Types and bounds of the commit.
    "step true": _commit(step=True),
    "world size 10**9": _commit(world_size=10**9),
    "no manifests": _commit(
        manifests=[],
        world_size=0,
        total_bytes=0,
    ),
    "manifests of numbers": _commit(manifests=[1]),
    "attempt leaves the prefix": _commit(attempt="../../x/../../"),
    "run is a list": _commit(run=["r"]),
    "no schema": _commit(schema="other/1"),
    "schema nested": _commit(schema=[[["x"]]]),
    "totals disagree": _commit(total_bytes=1),
    "another run": _commit(run="other"),
    # Geometry.
    "part halved": _part(bytes=64 * 64 * 2),
    "extent larger than its bytes": _part(shape=[128, 64], extent=[128, 64]),
    "a hole in a tensor": _part(shape=[128, 64]),
    "two parts in one place": _overlap_parts,
    "a tensor is missing": _remove_tensor,
    "dtype of twice the size": _part(dtype="float64"),
    "dtype unknown": _part(dtype="float7"),
    "dtype is a function": _part(dtype="load"),
    "negative offset": _part(offset=[-1, 0]),
    "axes differ": _part(offset=[0]),
    "extent true": _part(extent=[True, True]),
    "sixty axes": _use_sixty_axes,
    "a terabyte": _enlarge,
    "at beyond the end": _part(at=1 << 61),
    "shape overflows": _part(shape=[1 << 61, 1 << 61]),
    # Counts.
    "shard of another size": _manifest(shards=[{"bytes": 1, "crc32c": "00000000"}]),
    "crc is a number": _manifest(shards=[{"bytes": 1, "crc32c": 0}]),
    "shards is a map": _manifest(shards={}),
    "world size of another": _manifest(world_size=2),
    # Values.
    "values are a list": _manifest(values=[]),
    "entry nested 900 deep": _values(progress=json.loads("[" * 900 + "]" * 900)),
    "unknown mark": _values(progress={"$pickle": "x"}),
    "two marks": _values(progress={"$tuple": [], "$map": []}),
    "map of lists as keys": _values(progress={"$map": [[["x"], 1]]}),
    "float of words": _values(progress={"$float": "much"}),
    "names a tensor that is not there": _values(progress={"$tensor": "nowhere"}),
    "notes are a list": _values(__notes__=[1]),
    "notes of words": _values(
        __notes__={
            "hazard": {
                "events": ["x"],
                "exposure_s": [],
            },
            "age_s": "x",
        }
    ),
    # Objects of a file system in place of a file.
    "pipe as a shard": _replace_file(SHARD, os.mkfifo),
    "pipe as a manifest": _replace_file("rank-00000.json", os.mkfifo),
    "folder as a shard": _replace_file(SHARD, lambda path: (path / "below").mkdir(parents=True)),
    "link to itself as a shard": _replace_file(SHARD, lambda path: path.symlink_to(path)),
}
