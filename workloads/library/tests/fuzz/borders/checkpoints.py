"""What lies in a bucket of checkpoints."""

import contextlib
import io
import json
import random
from functools import cache
from typing import Any

from holdfast.checkpoint.cli import show
from holdfast.checkpoint.errors import Damaged, Fenced
from holdfast.checkpoint.format import digest_of, fence
from holdfast.checkpoint.format.decoding import decode_commit, parse_manifest
from holdfast.checkpoint.format.soundness import check_manifests
from holdfast.checkpoint.inspection import rows
from holdfast.checkpoint.restore.loading import read_whole
from holdfast.checkpoint.restore.reading import open_step
from holdfast.contract import object_names
from holdfast.contract.errors import InputError
from workloads.library.tests.checkpoint.forgeries import encoded, envelope
from workloads.library.tests.fuzz.borders.memory import Memory
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import hostile

RUN, STEP, ATTEMPT = "run", 3, "0123456789ab"


@cache
def _saved() -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Commit body, manifest and shard of a small state, as the library makes them."""
    import torch

    from holdfast.checkpoint.format import Commit, Manifest, Shard
    from holdfast.checkpoint.save.staging import copy_into
    from holdfast.checkpoint.state import capture
    from holdfast.checkpoint.state.tensors import memory_of, pieces_of, stream_bytes
    from holdfast.checkpoint.stores.storage import crc32c

    model = torch.nn.Linear(8, 8)
    captured = capture({"model": model, "at": 3, "seen": (1, 2.5, {"a": float("inf")})})
    pieces = pieces_of(captured, 0, 1)
    stream = torch.empty(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    shard = bytes(memory_of(stream))
    own = Manifest(
        run=RUN,
        step=STEP,
        attempt=ATTEMPT,
        rank=0,
        world_size=1,
        shards=(Shard(bytes=len(shard), crc32c=crc32c(memoryview(bytearray(shard)))),),
        tensors=tuple(piece.part for piece in pieces),
        values=captured.skeleton | {"__notes__": {}},
    )
    commit = Commit(
        run=RUN,
        step=STEP,
        attempt=ATTEMPT,
        world_size=1,
        total_bytes=len(shard),
        created=1_790_000_000,
        manifests=(digest_of(own.encode()),),
    )
    return json.loads(commit.encode())["body"], json.loads(own.encode()), shard


def _make_commit(draw: random.Random) -> bytes:
    body, _, _ = _saved()
    # Half of them with a digest that matches, or nothing behind the digest would ever be reached.
    return envelope(hostile((body,), draw)) if draw.random() < 0.7 else hostile((envelope(encoded(body)),), draw)


def _make_manifest(draw: random.Random) -> bytes:
    return hostile((_saved()[1],), draw)


def _enter_manifest(data: bytes) -> None:
    check_manifests([parse_manifest(data)])


def _enter_checkpoint(data: bytes) -> None:
    """A manifest that a commit names rightly: all that stands between it and memory is its own soundness."""
    stored = Memory(_objects(data))
    read_whole(stored, open_step(stored, RUN, STEP), None)


def _enter_listing(data: bytes) -> None:
    """The same as the table that people get: it shows what is odd, and refuses nothing."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show(list(rows(Memory(_objects(data)), RUN, read=True)))
    assert "\x1b" not in shown.getvalue()


def _objects(data: bytes) -> dict[str, bytes]:
    body, _, shard = _saved()
    digest = digest_of(data)
    body = body | {"manifests": [{"length": digest.length, "sha256": digest.sha256}]}
    step = f"{RUN}/step-{STEP:010d}"
    return {
        f"{step}/COMMIT.json": envelope(encoded(body)),
        f"{step}/{ATTEMPT}/rank-00000.json": data,
        f"{step}/{ATTEMPT}/rank-00000-00000.bin": shard,
    }


def _enter_epoch(data: bytes) -> None:
    """Of another trainer that began after this one: what it is called in the message comes from the object."""
    fence.check(Memory({object_names.epoch_object(RUN, 2): data}), RUN, 1)


REFUSALS = (Damaged, InputError)
BORDERS = {
    "commits": Border(make=_make_commit, enter=lambda data: decode_commit(data, run=RUN, step=STEP), refusals=REFUSALS),
    "manifests": Border(make=_make_manifest, enter=_enter_manifest, refusals=REFUSALS),
    "checkpoints": Border(make=_make_manifest, enter=_enter_checkpoint, refusals=REFUSALS),
    "lists of checkpoints": Border(make=_make_manifest, enter=_enter_listing),
    "epochs": Border(
        make=lambda draw: hostile(({"pid": 7, "host": "a-host"},), draw), enter=_enter_epoch, refusals=(Fenced,)
    ),
}
