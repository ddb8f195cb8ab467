"""Checkpoints that torch-checkpointing itself has written come in bit by bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.checkpoint import load_tensors
from tests import support
from tests.tools import frameworks
from workloads.library.tests.checkpoint.interchange.test_interchange import (
    invoke,
    make_weights,
    refuse,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SAVE = """
import sys

import torch
import torch.distributed as dist
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

weights_file, folder, store, rank, world_size, has_index = sys.argv[1:]
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size)
)
resharder = DefaultResharder() if has_index == "True" else None
config = CheckpointManager.Config(
    items={"model": ItemSpec(resharder=resharder)},
    save=SyncCheckpointSaverConfig(),
    # Direct I/O fails on ext4: the library's writes are not aligned.
    storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
)
manager = CheckpointManager(config)
manager.save(folder, {"model": torch.load(weights_file, weights_only=True)})
manager.close()
dist.destroy_process_group()
"""
"""A rank that saves weights with the other library. Several need a GPU to write an index."""


@pytest.fixture(scope="module")
def site() -> Path:
    try:
        return frameworks.install(frameworks.TORCH_CHECKPOINTING)
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"torch-checkpointing cannot be installed: {error}")


def save(
    site: Path,
    folder: Path,
    weights: dict[str, torch.Tensor],
    *,
    world_size: int = 1,
    has_index: bool = False,
) -> Path:
    """Returns the folder that `world_size` ranks have written."""
    weights_file = folder / "weights.pt"
    torch.save(weights, weights_file)
    written = folder / "written"
    store = folder / "store"
    ranks: list[subprocess.Popen[bytes]] = []
    for rank in range(world_size):
        words = [weights_file, written, store, rank, world_size, has_index]
        command = [sys.executable, "-W", "ignore", "-c", SAVE, *map(str, words)]
        ranks.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(site)}))
    for process in ranks:
        assert process.wait(240) == 0
    return written


@pytest.mark.parametrize("has_index", [True, False], ids=["index", "no index"])
def test_checkpoint_by_one_rank_is_imported_bit_by_bit(
    site: Path, tmp_path: Path, *, has_index: bool
) -> None:
    weights = make_weights()
    written = save(site, tmp_path, weights, has_index=has_index)
    assert (written / "metadata.pkl").exists() is has_index
    invoke("import", written, tmp_path / "url", "--run", "new")
    _, tensors = load_tensors(tmp_path / "url", "new", keys=["model/"])
    assert len(tensors) == len(weights)
    for name, tensor in weights.items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
        assert tensors[f"model/{name}"].dtype == tensor.dtype


def test_checkpoint_by_several_ranks_is_refused_with_a_way_in(site: Path, tmp_path: Path) -> None:
    written = save(site, tmp_path, make_weights(), world_size=2)
    error = refuse("import", written, tmp_path / "url", "--run", "new")
    assert "2 ranks wrote it" in error.got
    assert "from one rank" in error.fix
