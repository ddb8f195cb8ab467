"""Other world sizes, and meshes of two axes, whose shards of one axis interleave; and the check of
each commit.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Manifest, TensorPart
from holdfast.checkpoint.format.commit import CommitState, commit, committed_steps
from holdfast.checkpoint.format.soundness import check_manifests, tiles
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.stores.local import LocalStorage
from workloads.library.tests.checkpoint.jobs import RUN, TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run, same, step, whole

WIDTH = 10  # of which the ranks have parts of different sizes


def build(world: int) -> dict[str, Any]:
    """The same numbers whatever the mesh: tensor parallelism inside, FSDP2 outside."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, 6))
    if world == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(
            model,
            mesh["tp"],
            {
                "0": ColwiseParallel(),
                "1": RowwiseParallel(),
            },
        )
        fully_shard(model, mesh=mesh["dp"])
    elif world > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
    }


def train(world: int, url: str, steps: int) -> None:
    state = build(world)
    with Checkpointer(
        url,
        state,
        run=RUN,
        every=10**9,
        tuning=TUNING,
    ) as ckpt:
        assert ckpt.step == max(0, steps - 2)
        if ckpt.step:
            assert same(whole(state), torch.load(f"{url}-truth-{ckpt.step}", weights_only=True)), (
                "restored bits differ"
            )
        for number in range(ckpt.step, steps):
            step(state, number)
            ckpt.tick(number + 1)
        full = whole(state)
        if dist.get_rank() == 0:
            torch.save(full, f"{url}-truth-{steps}")
        assert ckpt.wait() or dist.get_rank(), ckpt.failure


@pytest.mark.process
def test_fsdp_alone_and_over_tensor_parallelism_comes_back_on_more_and_fewer_ranks(
    jobs: Jobs, tmp_path: Path
) -> None:
    url = str(tmp_path / "url")
    for turn, world in enumerate((2, 4, 3, 1), start=1):
        run(jobs, tmp_path, world, train, url, 2 * turn)
    found, tensors = load_tensors(url, RUN, keys=["model/", "optimizer/"])
    assert found == 8 and same(tensors, torch.load(f"{url}-truth-8", weights_only=True))


# -- the check before each commit --


def test_only_boxes_that_cover_each_element_once_are_whole() -> None:
    """Every set of boxes of the shape 2 by 2, those outside it and of no elements too."""
    runs = [
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
        (1, 0),
    ]
    boxes = [
        ((a, b), (height, width)) for (a, height), (b, width) in itertools.product(runs, repeat=2)
    ]
    for some in itertools.chain.from_iterable(
        itertools.combinations(boxes, n) for n in range(1, 5)
    ):
        covered = [
            (a + x, b + y)
            for (a, b), (height, width) in some
            for x in range(height)
            for y in range(width)
        ]
        assert tiles((2, 2), set(some)) == (
            sorted(covered)
            == [
                (0, 0),
                (0, 1),
                (1, 0),
                (1, 1),
            ]
        ), some


def manifest(rank: int, *parts: TensorPart, names: tuple[str, ...] = ("w",)) -> Manifest:
    values = {name: {"$map": [["inner", [{"$tensor": name}]]]} for name in names}
    return Manifest(
        run="r",
        step=1,
        attempt="a" * 12,
        rank=rank,
        world_size=2,
        shards=(),
        tensors=parts,
        values=values,
    )


def part(offset: int, extent: int, *, size: int = 4, key: str = "w") -> TensorPart:
    return TensorPart(
        key=key,
        dtype="uint8",
        shape=(size,),
        offset=(offset,),
        extent=(extent,),
        at=0,
        bytes=extent,
    )


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
    jobs = (
        Job(
            save=1,
            memory=0,
            length=2,
            shard_bytes=64,
            manifest=manifest(rank, part(0, 2)),
        )
        for rank in (0, 1)
    )
    first, _ = [upload(storage, half, job, parallel=1) for job in jobs]
    with pytest.raises(Damaged, match="tensor w do not make up"):
        commit(
            storage,
            first,
            state=CommitState(),
            timeout_s=10,
            abandoned=lambda _: False,
        )
    assert committed_steps(storage, "r") == []
