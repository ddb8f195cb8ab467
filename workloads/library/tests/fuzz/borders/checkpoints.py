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
from holdfast.support import object_names
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.forgeries import encoded, envelope
from workloads.library.tests.fuzz.borders.memory import Memory
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import hostile, seeded

RUN = "r"
STEP = 3
COMMIT = object_names.commit_object(RUN, STEP)
MANIFEST = object_names.manifest_object(RUN, STEP, f"{STEP:012x}", 0)


@cache
def _saved() -> dict[str, bytes]:
    """Objects of a checkpoint of a small state, as the library makes them."""
    import torch

    from holdfast.checkpoint.format.commit import CommitState, commit
    from holdfast.checkpoint.save.uploader_process import upload
    from workloads.library.tests.checkpoint.made import job

    stored = Memory({})
    one, stream = job(
        {
            "model": torch.nn.Linear(8, 8),
            "at": 3,
            "seen": (1, 2.5, {"a": float("inf")}),
        },
        STEP,
    )
    own = upload(stored, stream, one, parallel=1)
    commit(
        stored,
        own,
        state=CommitState(),
        timeout_s=10,
        abandoned=lambda _: False,
    )
    return stored.objects


def _commit_body() -> dict[str, Any]:
    return json.loads(_saved()[COMMIT])["body"]


def _make_commit(draw: random.Random) -> bytes:
    body = _commit_body()
    # Half of them with a digest that matches, or nothing behind the digest would ever be reached.
    if draw.random() < 0.7:
        return envelope(hostile((body,), draw))
    return hostile((envelope(encoded(body)),), draw)


def _make_manifest(draw: random.Random) -> bytes:
    return hostile((json.loads(_saved()[MANIFEST]),), draw)


def _enter_manifest(data: bytes) -> None:
    check_manifests([parse_manifest(data)])


def _enter_checkpoint(data: bytes) -> None:
    """A manifest that a commit names rightly: all that stands between it and memory is its own
    soundness.
    """
    stored = _stored(data)
    read_whole(stored, open_step(stored, RUN, STEP), None)


def _enter_listing(data: bytes) -> None:
    """The same as the table that people get: it shows what is odd, and refuses nothing."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show(list(rows(_stored(data), RUN, read=True)))
    assert "\x1b" not in shown.getvalue()


def _stored(data: bytes) -> Memory:
    digest = digest_of(data)
    body = _commit_body() | {"manifests": [{"length": digest.length, "sha256": digest.sha256}]}
    return Memory(
        _saved()
        | {
            MANIFEST: data,
            COMMIT: envelope(encoded(body)),
        }
    )


def _enter_epoch(data: bytes) -> None:
    """Of another trainer that began after this one: what it is called in the message comes from the
    object.
    """
    fence.check(Memory({object_names.epoch_object(RUN, 2): data}), RUN, 1)


REFUSALS = (Damaged, InputError)
BORDERS = {
    "commits": Border(
        make=_make_commit,
        enter=lambda data: decode_commit(data, run=RUN, step=STEP),
        refusals=REFUSALS,
    ),
    "manifests": Border(
        make=_make_manifest,
        enter=_enter_manifest,
        refusals=REFUSALS,
    ),
    "checkpoints": Border(
        make=_make_manifest,
        enter=_enter_checkpoint,
        refusals=REFUSALS,
    ),
    "lists of checkpoints": Border(make=_make_manifest, enter=_enter_listing),
    "epochs": Border(
        make=seeded({"pid": 7, "host": "a-host"}),
        enter=_enter_epoch,
        refusals=(Fenced,),
    ),
}
