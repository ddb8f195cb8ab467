"""The lead's checkpoints and their fence, on a real folder."""

from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import NotDurable, StorageError, Superseded
from holdfast.checkpoint.parts import fence, survey
from holdfast.checkpoint.stores import LocalStorage
from holdfast.training.elastic.saves import GangSaves

RUN = "gang"


class Flaky(LocalStorage):
    """Refuses the next `refusals` fences."""

    refusals = 0

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        if "epoch" in name and self.refusals:
            self.refusals -= 1
            raise StorageError("503")
        super().put(name, data, crc32c)


def saves_in(storage: LocalStorage, folder: Path) -> GangSaves:
    torch.manual_seed(1)
    state = {"model": nn.Linear(4, 4)}
    return GangSaves(
        str(folder),
        storage,
        RUN,
        state,
        gang="ours",
        every=1,
        keep=3,
        tuning=Tuning(),
        events=None,
        stop_asked=lambda: False,
    )


def committed(storage: LocalStorage) -> list[int]:
    return sorted(entry.step for entry in survey(storage, RUN).values() if entry.commit)


def test_a_lead_without_its_fence_saves_nothing_and_takes_the_fence_at_a_later_save(tmp_path: Path) -> None:
    storage = Flaky.open(str(tmp_path))
    storage.refusals = 2
    saves = saves_in(storage, tmp_path)
    saves.lead(0)
    saves.after_step(1)
    assert committed(storage) == []
    saves.make_durable(2, 20)
    assert committed(storage) == [2]
    # A zombie without a fence would go on here.
    fence.take(storage, RUN)
    with pytest.raises(Superseded):
        saves.make_durable(3, 20)
    saves.close()
    assert committed(storage) == [2]


def test_a_lead_that_never_gets_its_fence_ends_as_not_durable(tmp_path: Path) -> None:
    storage = Flaky.open(str(tmp_path))
    storage.refusals = 100
    saves = saves_in(storage, tmp_path)
    saves.lead(0)
    with pytest.raises(NotDurable) as end:
        saves.make_durable(1, 20)
    assert "503" in end.value.reason
    saves.close()
