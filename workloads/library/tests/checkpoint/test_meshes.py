"""Other world sizes, and meshes of two axes, whose shards of one axis interleave; and the check of each commit."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Manifest, TensorPart
from holdfast.checkpoint.format.commit import CommitState, commit, committed_steps
from holdfast.checkpoint.format.soundness import check_manifests, tiles
from holdfast.checkpoint.save.orders import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.stores.local import LocalStorage
from workloads.library.tests.checkpoint.jobs import TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run, same, step, whole

WIDTH = 10  # of which the ranks have parts of different sizes


def build(world: int) -> dict[str, Any]:
    """The same numbers whatever the mesh: tensor parallelism inside, FSDP2 outside."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, 6))
    if world == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    elif world > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}


def train(world: int, url: str, steps: int) -> None:
    state = build(world)
    with Checkpointer(url, state, run="r", every=10**9, tuning=TUNING) as ckpt:
        assert ckpt.step == max(0, steps - 2)
        if ckpt.step:
            assert same(whole(state), torch.load(f"{url}-truth-{ckpt.step}", weights_only=True)), "restored bits differ"
        for number in range(ckpt.step, steps):
            step(state, number)
            ckpt.tick(number + 1)
        full = whole(state)
        if dist.get_rank() == 0:
            torch.save(full, f"{url}-truth-{steps}")
        assert ckpt.wait() or dist.get_rank(), ckpt.failure


@pytest.mark.process
def test_fsdp_alone_and_over_tensor_parallelism_comes_back_on_more_and_fewer_ranks(jobs: Jobs, tmp_path: Path) -> None:
    url = str(tmp_path / "url")
    for turn, world in enumerate((2, 4, 3, 1), start=1):
        run(jobs, tmp_path, world, train, url, 2 * turn)
    found, tensors = load_tensors(url, "r", keys=["model/", "optimizer/"])
    assert found == 8 and same(tensors, torch.load(f"{url}-truth-8", weights_only=True))


# -- the check before each commit --


@st.composite
def cut(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A shape, and boxes that make it up: each axis is cut anywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    cuts = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    boxes = [
        (tuple(low for low, _ in one), tuple(high - low for low, high in one))
        for one in itertools.product(*map(itertools.pairwise, cuts))
    ]
    return shape, boxes


@given(cut=cut(), data=st.data())
@settings(max_examples=50)
def test_only_boxes_that_cover_each_element_once_are_whole(cut: Any, data: st.DataObject) -> None:
    shape, boxes = cut
    assert tiles(shape, set(boxes))
    gone = data.draw(st.sampled_from(boxes))
    assert not tiles(shape, {box for box in boxes if box != gone}), "a hole"
    moved = (tuple(data.draw(st.integers(0, size)) for size in shape), gone[1])
    if moved != gone:
        others = {moved if box == gone else box for box in boxes}
        assert not tiles(shape, others), "a hole and an overlap of the same size"


def manifest(rank: int, *parts: TensorPart, names: tuple[str, ...] = ("w",)) -> Manifest:
    values = {name: {"$map": [["inner", [{"$tensor": name}]]]} for name in names}
    return Manifest(run="r", step=1, attempt="a" * 12, rank=rank, world_size=2, shards=(), tensors=parts, values=values)


def part(offset: int, extent: int, *, size: int = 4, key: str = "w") -> TensorPart:
    return TensorPart(key=key, dtype="uint8", shape=(size,), offset=(offset,), extent=(extent,), at=0, bytes=extent)


def test_a_tensor_of_which_a_piece_is_missing_twice_there_or_written_by_nobody_is_damage() -> None:
    check_manifests([manifest(0, part(0, 2)), manifest(1, part(2, 2))])
    check_manifests([manifest(0, part(0, 4)), manifest(1, part(0, 4))])
    check_manifests([manifest(0, part(0, 4)), manifest(1, part(0, 3, size=3))])
    for wrong in ([part(0, 2)], [part(0, 3), part(2, 2)], [part(0, 2), part(1, 2)]):
        with pytest.raises(Damaged, match="tensor w do not make up"):
            check_manifests([manifest(rank, one) for rank, one in enumerate(wrong)])
    with pytest.raises(Damaged, match="has two dtypes"):
        check_manifests([manifest(0, part(0, 4)), manifest(1, replace(part(0, 4), dtype="int8"))])
    with pytest.raises(Damaged, match="no rank wrote tensor v"):
        check_manifests([manifest(0, part(0, 4), names=("w", "v"))])


def test_a_save_whose_pieces_do_not_make_up_a_tensor_gets_no_commit(tmp_path: Path) -> None:
    storage = LocalStorage.open(str(tmp_path))
    half = memoryview(bytearray(2))
    jobs = (Job(save=1, memory=0, length=2, shard_bytes=64, manifest=manifest(rank, part(0, 2))) for rank in (0, 1))
    first, _ = [upload(storage, half, job, parallel=1) for job in jobs]
    with pytest.raises(Damaged, match="tensor w do not make up"):
        commit(storage, first, state=CommitState(), timeout_s=10, abandoned=lambda _: False)
    assert committed_steps(storage, "r") == []
