"""Checkpoints whose every digest matches, made by somebody who can write to the bucket: with the
key or without it.

Each forgery takes the objects of a commit that the library wrote, changes what it is named for, and
makes digests and signature anew over the result, as its author's own tools would.
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
    folder: Path
    """Of one step."""
    commit: dict[str, Any]
    manifest: dict[str, Any]
    """Of rank 0."""
    body: bytes | None = None
    """Stands for the encoded commit, where it is no JSON that a library would write."""
    after: list[Callable[[Path], None]] = field(default_factory=list[Callable[[Path], None]])

    @property
    def attempt(self) -> Path:
        return self.folder / self.commit["attempt"]

    @property
    def values(self) -> dict[str, Any]:
        return self.manifest["values"]

    @property
    def largest(self) -> dict[str, Any]:
        return max(self.manifest["tensors"], key=lambda part: part["bytes"])


def encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def forge(folder: Path, change: Change) -> None:
    """Changes the checkpoint in `folder`; signs where this process has a key."""
    path = folder / "COMMIT.json"
    commit = json.loads(path.read_bytes())["body"]
    manifest_path = folder / commit["attempt"] / "rank-00000.json"
    forged = Forged(
        folder=folder,
        commit=commit,
        manifest=json.loads(manifest_path.read_bytes()),
    )
    change(forged)
    manifest_bytes = encoded(forged.manifest)
    manifest_path.write_bytes(manifest_bytes)
    digest = {
        "length": len(manifest_bytes),
        "sha256": hashlib.sha256(manifest_bytes).hexdigest(),
    }
    if any(isinstance(found, dict) for found in forged.commit["manifests"]):
        forged.commit["manifests"][0] = digest
    path.write_bytes(envelope(forged.body if forged.body is not None else encoded(forged.commit)))
    for step in forged.after:
        step(forged.attempt)


def envelope(body: bytes) -> bytes:
    signature = signing.signature_of(body)
    seal = b',"seal":"%s"' % signature.encode() if signature else b""
    return (
        b'{"body":'
        + body
        + seal
        + b',"sha256":"'
        + hashlib.sha256(body).hexdigest().encode()
        + b'"}'
    )


def _changed(of: str, **changed: Any) -> Change:
    return lambda forged: getattr(forged, of).update(changed)


_part, _values, _commit, _manifest = (
    partial(_changed, of) for of in ("largest", "values", "commit", "manifest")
)


def _body(old: bytes, new: bytes) -> Change:
    def change(forged: Forged) -> None:
        forged.body = encoded(forged.commit).replace(old, new, 1)
        assert forged.body != encoded(forged.commit)

    return change


def _twice_in_one_place(forged: Forged) -> None:
    parts = [part for part in forged.manifest["tensors"] if part["bytes"]]
    parts[0]["at"] = parts[1]["at"]


def _without_a_tensor(forged: Forged) -> None:
    forged.manifest["tensors"].remove(forged.largest)


def _huge(forged: Forged) -> None:
    """Everything agrees with everything else; only the stored object is small."""
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


def _many_axes(forged: Forged) -> None:
    part = forged.largest
    halves = [
        part
        | {
            "dtype": "uint8",
            "shape": [2] * 60,
            "offset": [n] * 60,
            "extent": [1] * 60,
        }
        for n in (0, 1)
    ]
    forged.manifest["tensors"].remove(part)
    forged.manifest["tensors"] += [
        half | {"bytes": 1, "at": part["at"] + n} for n, half in enumerate(halves)
    ]


def _instead_of(name: str, make: Callable[[Path], object]) -> Change:
    def replace(attempt: Path) -> None:
        (attempt / name).unlink()
        make(attempt / name)

    return lambda forged: forged.after.append(replace)


def spoil_random_state(forged: Forged) -> None:
    """Where Python's generator stands in its list of numbers, in the bytes of a tensor and so
    behind a checksum.
    """
    (part,) = [part for part in forged.manifest["tensors"] if part["key"] == "__rng__/python/state"]
    shard = forged.attempt / SHARD
    data = bytearray(shard.read_bytes())
    end = part["at"] + part["bytes"]
    data[end - 8 : end] = (10**9).to_bytes(8, "little")
    shard.write_bytes(data)
    forged.manifest["shards"][0]["crc32c"] = crc32c(memoryview(data))


DEEP = 100_000
FORGERIES: dict[str, Change] = {
    # what ends a parser
    "NaN": _body(b'"created":', b'"created":NaN,"x":'),
    "1e999": _body(b'"created":', b'"created":1e999,"x":'),
    "nested without end": _body(
        b'"created":', b'"x":' + b"[" * DEEP + b"]" * DEEP + b',"created":'
    ),
    "an integer of 5,000 digits": _body(b'"created":', b'"created":1' + b"0" * 5_000 + b',"x":'),
    "no JSON": lambda forged: setattr(forged, "body", b"\xff\x00"),
    "a list": lambda forged: setattr(forged, "body", b"[]"),
    # types and bounds of the commit
    "step true": _commit(step=True),
    "world size 10**9": _commit(world_size=10**9),
    "no manifests": _commit(manifests=[], world_size=0, total_bytes=0),
    "manifests of numbers": _commit(manifests=[1]),
    "attempt leaves the prefix": _commit(attempt="../../x/../../"),
    "run is a list": _commit(run=["r"]),
    "no schema": _commit(schema="other/1"),
    "schema nested": _commit(schema=[[["x"]]]),
    "totals disagree": _commit(total_bytes=1),
    "another run": _commit(run="other"),
    # geometry
    "part halved": _part(bytes=64 * 64 * 2),
    "extent larger than its bytes": _part(shape=[128, 64], extent=[128, 64]),
    "a hole in a tensor": _part(shape=[128, 64]),
    "two parts in one place": _twice_in_one_place,
    "a tensor is missing": _without_a_tensor,
    "dtype of twice the size": _part(dtype="float64"),
    "dtype unknown": _part(dtype="float7"),
    "dtype is a function": _part(dtype="load"),
    "negative offset": _part(offset=[-1, 0]),
    "axes differ": _part(offset=[0]),
    "extent true": _part(extent=[True, True]),
    "sixty axes": _many_axes,
    "a terabyte": _huge,
    "at beyond the end": _part(at=1 << 61),
    "shape overflows": _part(shape=[1 << 61, 1 << 61]),
    # counts
    "shard of another size": _manifest(shards=[{"bytes": 1, "crc32c": "00000000"}]),
    "crc is a number": _manifest(shards=[{"bytes": 1, "crc32c": 0}]),
    "shards is a map": _manifest(shards={}),
    "world size of another": _manifest(world_size=2),
    # values
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
    # what a file system can hold in the place of a file
    "pipe as a shard": _instead_of(SHARD, os.mkfifo),
    "pipe as a manifest": _instead_of("rank-00000.json", os.mkfifo),
    "folder as a shard": _instead_of(SHARD, lambda path: (path / "below").mkdir(parents=True)),
    "link to itself as a shard": _instead_of(SHARD, lambda path: path.symlink_to(path)),
}
