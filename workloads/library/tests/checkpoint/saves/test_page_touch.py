"""The staging memory has its pages before the first save, and workers that are forked meanwhile do
not hang.
"""

import os
import threading
from types import FrameType

import pytest
import torch

from holdfast.checkpoint.save import page_touch
from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import Piece, make_pieces


@pytest.fixture
def pieces() -> list[Piece]:
    state = {"t": torch.ones(100 << 20, dtype=torch.uint8)}
    return make_pieces(capture(state), 0, 1)


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_every_page_is_there_before_the_first_save(
    kernel: str,
    pieces: list[Piece],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernel == "old":
        monkeypatch.setattr(page_touch, "_populate", lambda _address, _length: False)
    staging = Staging()
    staging.prepare(pieces)
    staging._join()  # pyright: ignore[reportPrivateUsage]
    assert os.fstat(staging.descriptor).st_blocks * 512 == staging.bytes
    staging.close()


def test_pages_are_touched_without_tensor_operations(pieces: list[Piece]) -> None:
    calls: list[object] = []

    def record_call(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call":
            calls.append(called)

    staging = Staging()
    threading.setprofile(record_call)
    try:
        staging.prepare(pieces)
        staging._join()  # pyright: ignore[reportPrivateUsage]
    finally:
        threading.setprofile(None)
    names = [getattr(call, "__qualname__", "") for call in calls]
    assert names
    assert "dlopen" not in names, "the loader has a lock of its own"
    # The address of a tensor is read without the dispatcher.
    assert {name for name in names if "Tensor" in name} <= {"Tensor.data_ptr"}
    staging.close()
