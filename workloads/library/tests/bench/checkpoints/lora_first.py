"""Write the first checkpoint of the run whose stops are measured, without a staged base.

Started by workloads.library.tests.bench.checkpoints.lora_stops with its settings as JSON. The first
save of a run stages the base, which would take this machine 16 GB of memory once. Here each shard
is staged by itself; all else is done by the library's own functions.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.cadence import Hazard
from holdfast.checkpoint.format import Shard
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.ranks import OneProcessStore, Ranks
from holdfast.checkpoint.save.agreement import make_manifest
from holdfast.checkpoint.save.frozen import read_stretch, split_stream
from holdfast.checkpoint.save.shared_shards import SharedShards
from holdfast.checkpoint.save.staging import copy_into
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, capture
from holdfast.checkpoint.state.tensors import (
    Piece,
    count_frozen_bytes,
    make_pieces,
    stream_bytes,
    view_memory,
)
from holdfast.checkpoint.stores import LocalStorage
from holdfast.checkpoint.stores.storage import crc32c
from workloads.library.tests.bench.checkpoints.lora_model import Sizes, make_state

STEP = 1
ATTEMPT = f"{STEP:012x}"


def store_base(
    storage: LocalStorage,
    run: str,
    pieces: list[Piece],
    frozen_bytes: int,
    shard_bytes: int,
) -> list[Shard]:
    """Stores the shards of the base, of which all but the last are the same."""
    shared = SharedShards(storage)
    by_checksum: dict[str, Shard] = {}
    shards: list[Shard] = []
    for index, stretch in enumerate(split_stream(frozen_bytes, shard_bytes)):
        data = memoryview(bytearray().join(read_stretch(pieces, stretch)))
        checksum = crc32c(data)
        shard = by_checksum.get(checksum) or shared.store(run, index, data, checksum)
        assert shard
        by_checksum[checksum] = shard
        shards.append(shard)
    return shards


def write_checkpoint(
    storage: LocalStorage, run: str, captured: Captured, pieces: list[Piece]
) -> None:
    frozen_bytes = count_frozen_bytes(captured, pieces)
    length = stream_bytes(pieces)
    shard_bytes = Tuning().shard_size(length)
    shards = store_base(storage, run, pieces, frozen_bytes, shard_bytes)
    memory = torch.zeros(length - frozen_bytes, dtype=torch.uint8)
    copy_into(memory, [piece for piece in pieces if piece.part.at >= frozen_bytes], frozen_bytes)
    manifest = make_manifest(
        run, Ranks(OneProcessStore(), 0, 1), STEP, ATTEMPT, captured, pieces, Hazard().notes()
    )
    job = Job(
        save=1,
        length=len(memory),
        shard_bytes=shard_bytes,
        manifest=manifest,
        shared=tuple(shards),
    )
    commit(
        storage,
        upload(storage, view_memory(memory), job, parallel=2),
        state=CommitState(),
        timeout_s=60.0,
        abandoned=lambda _: False,
    )


def main(settings: dict[str, Any]) -> None:
    state = make_state(Sizes(layers=settings["layers"], width=settings["width"]))
    captured = capture(state)
    pieces = make_pieces(captured, 0, 1)
    storage = LocalStorage.open(str(Path(settings["folder"])))
    write_checkpoint(storage, settings["run"], captured, pieces)
    figures = {
        "base_bytes": count_frozen_bytes(captured, pieces),
        "trained_bytes": stream_bytes(pieces) - count_frozen_bytes(captured, pieces),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
