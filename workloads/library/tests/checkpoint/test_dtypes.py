"""What an uploader knows of dtypes without PyTorch, whose import would cost each start seconds and half a gigabyte."""

from pathlib import Path

import psutil
import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.format.soundness import ITEM_BYTES, item_bytes
from holdfast.checkpoint.state.tensors import dtype_of


def test_the_table_agrees_with_pytorch() -> None:
    known = {name: dtype.itemsize for name in ITEM_BYTES if (dtype := dtype_of(name))}
    assert known == ITEM_BYTES
    assert (item_bytes("bits8"), item_bytes("nonsense"), item_bytes("torch")) == (1, None, None)


@pytest.mark.process
def test_an_uploader_commits_without_pytorch(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with Checkpointer(str(tmp_path), {"w": torch.zeros(4)}, run="r", every=10**9) as checkpointer:
        checkpointer.save(1)
        assert checkpointer.wait()
        uploaders = [child for child in psutil.Process().children() if child.pid not in before]
        mapped = [
            path for child in uploaders if "uploader_process" in " ".join(child.cmdline()) for path in maps(child)
        ]
    assert any("python" in path for path in mapped)
    assert not [path for path in mapped if "libtorch" in path]


def maps(process: psutil.Process) -> list[str]:
    return Path(f"/proc/{process.pid}/maps").read_text().splitlines()
