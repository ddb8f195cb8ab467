"""What one save asks of the store, counted: time is what a busy machine makes of it."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from holdfast.checkpoint.format import fence
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.save.retention import Known, Policy, retain
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import Storage
from workloads.library.tests.checkpoint.made import job

RUN, WORLD = "r", 2


class Asked:
    """A store that counts what it is asked for."""

    def __init__(self, root: Path) -> None:
        self._storage, self.count = LocalStorage.open(str(root)), Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.count[name] += 1
        return getattr(self._storage, name)


@pytest.mark.parametrize("kept", [2, 5])
def test_a_save_asks_for_as_much_however_many_checkpoints_are_kept(tmp_path: Path, kept: int) -> None:
    asked, known = Asked(tmp_path), Known()
    store = cast(Storage, asked)
    state = CommitState(epoch=fence.take(store, RUN), keep=kept)
    for step in range(1, kept + 3):
        asked.count.clear()
        jobs = [job({str(n): torch.ones(8) for n in range(4)}, step, rank, WORLD) for rank in range(WORLD)]
        own, _ = [upload(store, stream, one, parallel=1) for one, stream in jobs]
        commit(store, own, state=state, timeout_s=10)
        retain(store, RUN, Policy(keep=kept), known=known)
    # Two shards, two manifests and the commit; is the other rank's manifest there; both manifests and the new commit;
    # the attempt, the fence and the run; the objects of the oldest step.
    assert asked.count == {"put": 5, "stat": 1, "read_into": 3, "list": 3, "delete": 5}
