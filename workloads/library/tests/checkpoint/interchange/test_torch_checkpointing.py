"""Checkpoints that torch-checkpointing itself has written come in bit by bit."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import load_tensors
from tests.tools import frameworks
from workloads.library.tests.checkpoint.interchange.test_interchange import (
    invoke,
    make_weights,
    refuse,
)
from workloads.library.tests.fork_server import ROOT, Forked, ForkServer
from workloads.library.tests.locked_packages import install_packages

Index = dict[str, Any]

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SAVE = """
import sys

import torch
import torch.distributed as dist
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

rank, weights_file, folder, store, world_size, has_index = sys.argv[1:]
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
"""A rank that saves weights with the other library."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Yields a server of processes that have imported the other library."""
    site = install_packages(frameworks.TORCH_CHECKPOINTING)
    imports = (
        "torch._dynamo",
        "torch_checkpointing",
        "torch_checkpointing.default_resharder",
        "torch_checkpointing.storage.filesystem",
        "workloads.library.tests.checkpoint.interchange.layouts",
    )
    with closing(ForkServer(imports, path=[ROOT, site])) as server:
        yield server


def save(
    server: ForkServer,
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
    words = [weights_file, written, folder / "store", world_size, has_index]
    run_ranks(server, folder, SAVE, words, world_size=world_size)
    return written


def run_ranks(
    server: ForkServer,
    folder: Path,
    program: str,
    words: Sequence[object],
    *,
    world_size: int,
) -> None:
    """Run a program on several ranks: its arguments are the rank and `words`."""
    script = folder / "rank.py"
    script.write_text(program)
    log = folder / "ranks.log"
    ranks: list[Forked] = []
    with log.open("a") as out:
        for rank in range(world_size):
            command = [sys.executable, str(script), str(rank), *map(str, words)]
            ranks.append(server.start(command, env=os.environ, out=out, err=out, session=False))
    for process in ranks:
        assert process.wait(240) == 0, log.read_text()


@pytest.mark.parametrize("has_index", [True, False], ids=["index", "no index"])
def test_checkpoint_by_one_rank_is_imported_bit_by_bit(
    server: ForkServer, tmp_path: Path, *, has_index: bool
) -> None:
    weights = make_weights()
    written = save(server, tmp_path, weights, has_index=has_index)
    assert (written / "metadata.pkl").exists() is has_index
    invoke("import", written, tmp_path / "url", "--run", "new")
    _, tensors = load_tensors(tmp_path / "url", "new", keys=["model/"])
    assert len(tensors) == len(weights)
    for name, tensor in weights.items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
        assert tensors[f"model/{name}"].dtype == tensor.dtype


SAVE_SHARDED = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.checkpoint_layout import LayoutInfo, SafetensorsSerialization
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from workloads.library.tests.checkpoint.interchange.layouts import LAYOUTS
from workloads.library.tests.checkpoint.process_groups import step, whole

rank, folder, layout, world_size, is_safetensors = sys.argv[1:]
folder = Path(folder)
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(world_size)
)


def gather(self, data, process_group=None):
    gathered = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(gathered, data, group=process_group)
    return dict(enumerate(gathered))


# The library gathers what the ranks hold through the memory of GPUs, and these ranks have none.
DefaultMetadataManager._all_gather_pickled_data = gather
state = LAYOUTS[int(world_size)][layout](1)
step(state, 1)
tensors = whole(state)
if rank == "0":
    torch.save(tensors, folder / "expected.pt")
model_layout = None
if is_safetensors == "True":
    model_layout = LayoutInfo("model/of-{rank}.safetensors", SafetensorsSerialization())
config = CheckpointManager.Config(
    items={
        "model": ItemSpec(resharder=DefaultResharder(), layout=model_layout),
        "optimizer": ItemSpec(resharder=DefaultResharder()),
    },
    save=SyncCheckpointSaverConfig(),
    storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
)
items = {
    "model": state["model"].state_dict(),
    "optimizer": state["optimizer"].state_dict(),
    "progress": {"epoch": 3},
}
manager = CheckpointManager(config)
manager.save(str(folder / "first"), items)
manager.save(str(folder / "second"), items)
manager.save(str(folder / "with-own-values"), items | {"loader": {"shard": int(rank)}})
manager.close()
dist.destroy_process_group()
"""
"""A rank of a sharded job, which saves its state with the other library."""


@pytest.mark.parametrize(
    ("world_size", "layout", "is_safetensors"),
    [
        (2, "FSDP2 on 2", False),
        (2, "tensor parallel", True),
        (4, "FSDP2 on 4", True),
        (4, "HSDP", False),
        (4, "two axes", False),
    ],
)
def test_checkpoint_by_several_ranks_is_put_together(
    server: ForkServer,
    tmp_path: Path,
    world_size: int,
    layout: str,
    *,
    is_safetensors: bool,
) -> None:
    words = [tmp_path, layout, world_size, is_safetensors]
    run_ranks(server, tmp_path, SAVE_SHARDED, words, world_size=world_size)
    expected = torch.load(tmp_path / "expected.pt", weights_only=True)
    url = tmp_path / "url"
    invoke("import", tmp_path / "first", url, "--run", "first")
    check_tensors(url, "first", expected)

    # A manager that saves at once writes an index with its first save only.
    index = tmp_path / "first" / "metadata.pkl"
    second = tmp_path / "second"
    error = refuse("import", second, url, "--run", "second")
    if is_safetensors:
        assert "without an index" in error.got
        assert "metadata.pkl" in error.fix
    else:
        assert "model/0.weight is a part of a tensor" in error.got
        assert "metadata.pkl of the same job's first save" in error.fix
    shutil.copy(index, second)
    invoke("import", second, url, "--run", "second")
    check_tensors(url, "second", expected)

    third = tmp_path / "with-own-values"
    shutil.copy(index, third)
    error = refuse("import", third, url, "--run", "third")
    assert "different values of loader/shard" in error.got
    for file in third.glob("loader_*.pt"):
        file.unlink()
    invoke("import", third, url, "--run", "third")


def check_tensors(url: Path, run: str, expected: dict[str, torch.Tensor]) -> None:
    """Check that a run holds the expected tensors of model and optimizer, and no others."""
    _, tensors = load_tensors(url, run, keys=["model/", "optimizer/"])
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name])


def test_ranks_without_an_index_must_be_replicas(server: ForkServer, tmp_path: Path) -> None:
    weights = make_weights()
    written = save(server, tmp_path, weights, world_size=2)
    invoke("import", written, tmp_path / "url", "--run", "new")
    _, tensors = load_tensors(tmp_path / "url", "new", keys=["model/"])
    for name, tensor in weights.items():
        assert torch.equal(tensors[f"model/{name}"], tensor)

    weights["0.bias"] = weights["0.bias"] + 1
    torch.save(weights, written / "model_1.pt")
    error = refuse("import", written, tmp_path / "url", "--run", "other")
    assert "different values of model/0.bias" in error.got
    assert "without model_*.pt" in error.fix
    (written / "model_0.pt").unlink()
    error = refuse("import", written, tmp_path / "url", "--run", "other")
    assert "model_0.pt is missing" in error.got
    assert str(written / "model_1.pt") in error.fix


def lie_about_the_version(index: Index) -> None:
    index["version"] = "3.0"


def lie_about_the_shape(index: Index) -> None:
    get_sharding(index)["global_shape"] = [10, 9]


def lie_about_replicas(index: Index) -> None:
    get_sharding(index)["placements"] = [{"type": "Replicate"}]


def lie_about_the_mesh(index: Index) -> None:
    get_sharding(index)["mesh_spec"]["mesh_data"] = (0, 0)


def lie_about_a_file(index: Index) -> None:
    layout = {
        "file_path": "../expected.pt",
        "serialization_format": {"type": "TorchSerialization"},
    }
    index["metadata"]["model"]["rank_to_layout_info"][1] = layout


def lie_about_the_ranks(index: Index) -> None:
    index["world_size"] = 3


def get_sharding(index: Index) -> Any:
    (group,) = index["metadata"]["model"]["nested_path_to_metadata"]['["0.weight"]']
    return group["sharding_metadata"]["data"]


def test_index_that_lies_is_refused(server: ForkServer, tmp_path: Path) -> None:
    import pickle  # noqa: TID251  # what the other library writes

    words = [tmp_path, "FSDP2 on 2", 2, False]
    run_ranks(server, tmp_path, SAVE_SHARDED, words, world_size=2)
    index_file = tmp_path / "first" / "metadata.pkl"
    written = index_file.read_bytes()
    for lie, got in {
        lie_about_the_version: "version '3.0'",
        lie_about_the_shape: "rank 0 has [5, 8] of tensor model/0.weight",
        lie_about_replicas: "[5, 8] of tensor model/0.weight, and metadata.pkl says [10, 8]",
        lie_about_the_mesh: "a mesh of shape (2,)",
        lie_about_a_file: "outside of the folder",
        lie_about_the_ranks: "model_2.pt is missing",
    }.items():
        index = pickle.loads(written)
        lie(index)
        index_file.write_bytes(pickle.dumps(index))
        assert got in refuse("import", tmp_path / "first", tmp_path / "url", "--run", "new").got
    index_file.write_bytes(written)
    (tmp_path / "first" / "notes.txt").touch()
    error = refuse("import", tmp_path / "first", tmp_path / "url", "--run", "new")
    assert "notes.txt belongs to no item" in error.got
