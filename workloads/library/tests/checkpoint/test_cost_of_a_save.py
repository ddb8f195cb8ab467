"""What one save asks of the store, counted: time is what a busy machine makes of it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.checkpoint.format import Manifest, fence
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.save.orders import Job
from holdfast.checkpoint.save.retention import Known, Policy, retain
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import pieces_of
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import Stat

RUN, WORLD = "r", 2


class Asked(LocalStorage):
    """A store that counts what it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.count = Counter[str]()

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        self.count["put"] += 1
        super().put(name, data, crc32c)

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self.count["read"] += 1
        super().read_into(name, start, into)

    def list(self, prefix: str) -> Iterator[Stat]:
        self.count["list"] += 1
        yield from LocalStorage(self._root).list(prefix)

    def stat(self, name: str) -> Stat:
        self.count["stat"] += 1
        return super().stat(name)

    def delete(self, name: str) -> None:
        self.count["delete"] += 1
        super().delete(name)


def job(step: int, rank: int) -> Job:
    captured = capture({str(n): torch.ones(8) for n in range(4)})
    parts = tuple(piece.part for piece in pieces_of(captured, rank, WORLD))
    manifest = Manifest(
        run=RUN, step=step, attempt=f"{step:012x}", rank=rank, world_size=WORLD, shards=(), tensors=parts,
        values=captured.skeleton,
    )  # fmt: skip
    length = parts[-1].at + parts[-1].bytes
    return Job(save=step, length=length, shard_bytes=1 << 20, manifest=manifest)


@pytest.mark.parametrize("kept", [2, 5])
def test_a_save_asks_for_as_much_however_many_checkpoints_are_kept(tmp_path: Path, kept: int) -> None:
    store, known = Asked.open(str(tmp_path)), Known()
    state = CommitState(epoch=fence.take(store, RUN), keep=kept)
    for step in range(1, kept + 3):
        store.count.clear()
        jobs = [job(step, rank) for rank in range(WORLD)]
        own, _ = [upload(store, memoryview(bytearray(one.length)), one, parallel=1) for one in jobs]
        commit(store, own, state=state, timeout_s=10)
        retain(store, RUN, Policy(keep=kept), known=known)
    # Two shards, two manifests and the commit; is the other rank's manifest there; both manifests and the new commit;
    # the attempt, the fence and the run; the objects of the oldest step.
    assert store.count == {"put": 5, "stat": 1, "read": 3, "list": 3, "delete": 5}
