"""Objects in a bucket of checkpoints."""

import contextlib
import io
import json
import random
from functools import cache
from typing import Any

from holdfast.checkpoint.cli import print_attempts
from holdfast.checkpoint.errors import Damaged, Fenced
from holdfast.checkpoint.format import digest_manifest, fence
from holdfast.checkpoint.format.decoding import decode_commit, parse_manifest
from holdfast.checkpoint.format.validation import check_manifests
from holdfast.checkpoint.inspection import rows
from holdfast.checkpoint.restore.reader import open_step
from holdfast.checkpoint.restore.tensor_loading import read_whole
from holdfast.support import object_names
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.forgeries import encode_json, envelope
from workloads.library.tests.fuzz.borders.memory import Memory
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import draw_hostile, hostile_inputs

RUN = "r"
STEP = 3
COMMIT = object_names.commit_object(RUN, STEP)
MANIFEST = object_names.manifest_object(RUN, STEP, f"{STEP:012x}", 0)


@cache
def _save() -> dict[str, bytes]:
    """Save a small state, and return the objects of its checkpoint."""
    import torch

    from holdfast.checkpoint.format.commit import CommitState, commit
    from holdfast.checkpoint.save.uploader_process import upload
    from workloads.library.tests.checkpoint.made import job

    storage = Memory({})
    upload_job, stream = job(
        {
            "model": torch.nn.Linear(8, 8),
            "at": 3,
            "seen": (1, 2.5, {"a": float("inf")}),
        },
        STEP,
    )
    manifest = upload(storage, stream, upload_job, parallel=1)
    commit(
        storage,
        manifest,
        state=CommitState(),
        timeout_s=10,
        abandoned=lambda _: False,
    )
    return storage.objects


def _commit_body() -> dict[str, Any]:
    return json.loads(_save()[COMMIT])["body"]


def _make_commit(draw: random.Random) -> bytes:
    body = _commit_body()
    # Most have a digest that matches, or no input would reach the code behind the digest.
    if draw.random() < 0.7:
        return envelope(draw_hostile((body,), draw))
    return draw_hostile((envelope(encode_json(body)),), draw)


def _make_manifest(draw: random.Random) -> bytes:
    manifest = json.loads(_save()[MANIFEST])
    return draw_hostile((manifest,), draw)


def _enter_manifest(data: bytes) -> None:
    check_manifests([parse_manifest(data)])


def _enter_checkpoint(data: bytes) -> None:
    """Read a manifest with a matching commit, so that only its validation protects memory."""
    storage = _store_manifest(data)
    read_whole(storage, open_step(storage, RUN, STEP), None)


def _enter_listing(data: bytes) -> None:
    """List the checkpoints as a table, which shows odd ones and refuses none."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        print_attempts(list(rows(_store_manifest(data), RUN, read=True)))
    assert "\x1b" not in output.getvalue()


def _store_manifest(data: bytes) -> Memory:
    """Return a store with this manifest, and a commit that names it."""
    digest = digest_manifest(data)
    body = _commit_body()
    body["manifests"] = [{"length": digest.length, "sha256": digest.sha256}]
    objects = dict(_save())
    objects[MANIFEST] = data
    objects[COMMIT] = envelope(encode_json(body))
    return Memory(objects)


def _enter_epoch(data: bytes) -> None:
    """Check the fence of a later trainer, whose object describes it in the message."""
    name = object_names.epoch_object(RUN, 2)
    fence.check(Memory({name: data}), RUN, 1)


REFUSALS = (Damaged, InputError)
BORDERS = {
    "commits": Border(
        make=_make_commit,
        enter=lambda data: decode_commit(data, run=RUN, step=STEP),
        refusals=REFUSALS,
    ),
    "manifests": Border(make=_make_manifest, enter=_enter_manifest, refusals=REFUSALS),
    "checkpoints": Border(make=_make_manifest, enter=_enter_checkpoint, refusals=REFUSALS),
    "lists of checkpoints": Border(make=_make_manifest, enter=_enter_listing),
    "epochs": Border(
        make=hostile_inputs({"pid": 7, "host": "a-host"}),
        enter=_enter_epoch,
        refusals=(Fenced,),
    ),
}
