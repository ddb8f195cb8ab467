"""Restores on other world sizes and on meshes of two axes, and the check before each commit.

On a mesh of two axes the shards of one axis interleave.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Manifest, TensorPart
from holdfast.checkpoint.format.commit import CommitState, commit, committed_steps
from holdfast.checkpoint.format.validation import check_manifests, tiles
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.state.sharding import list_intervals
from holdfast.checkpoint.stores.local import LocalStorage
from workloads.library.tests.checkpoint.jobs import RUN, TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run, same, step, whole

# The ranks have parts of different sizes of it. PyTorch 2.7 refuses that, and 2.8's own
# full_tensor() then puts them together wrongly.
WIDTH = 8 if torch.__version__.startswith(("2.7.", "2.8.")) else 10


def build(world: int) -> dict[str, Any]:
    """Build the same numbers for every mesh: tensor parallelism inside, FSDP2 outside."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, 6))
    if world == 4:
        mesh = init_device_mesh(
            "cpu",
            (2, 2),
            mesh_dim_names=("dp", "tp"),
        )
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


def train(
    world: int,
    url: str,
    steps: int,
) -> None:
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
            expected = torch.load(f"{url}-truth-{ckpt.step}", weights_only=True)
            assert same(whole(state), expected), "restored bits differ"
        for number in range(ckpt.step, steps):
            step(state, number)
            ckpt.tick(number + 1)
        full = whole(state)
        if dist.get_rank() == 0:
            torch.save(full, f"{url}-truth-{steps}")
        assert ckpt.wait() or dist.get_rank(), ckpt.failure


@pytest.mark.process
def test_fsdp_with_and_without_tensor_parallelism_changes_its_world_size(
    jobs: Jobs, tmp_path: Path
) -> None:
    url = str(tmp_path / "url")
    for turn, world in enumerate((2, 4, 3, 1), start=1):
        run(
            jobs,
            tmp_path,
            world,
            train,
            url,
            2 * turn,
        )
    restored_step, tensors = load_tensors(
        url,
        RUN,
        keys=["model/", "optimizer/"],
    )
    expected = torch.load(f"{url}-truth-8", weights_only=True)
    assert restored_step == 8
    assert same(tensors, expected)


# -- the check before each commit --

Box = tuple[tuple[int, int], tuple[int, int]]
INTERVALS = [
    (0, 1),
    (1, 1),
    (0, 2),
    (1, 2),
    (1, 0),
]
SQUARE = [
    (0, 0),
    (0, 1),
    (1, 0),
    (1, 1),
]


def list_boxes() -> list[Box]:
    boxes: list[Box] = []
    for (row, height), (column, width) in itertools.product(INTERVALS, repeat=2):
        boxes.append(((row, column), (height, width)))
    return boxes


def list_elements(boxes: Iterable[Box]) -> list[tuple[int, int]]:
    elements: list[tuple[int, int]] = []
    for (row, column), (height, width) in boxes:
        for element in itertools.product(range(height), range(width)):
            elements.append((row + element[0], column + element[1]))
    return sorted(elements)


@pytest.mark.parametrize("count", range(1, 5))
def test_boxes_are_whole_if_they_cover_each_element_once(count: int) -> None:
    """All sets of boxes in a shape of 2 by 2, also boxes outside of it and without elements."""
    for boxes in itertools.combinations(list_boxes(), count):
        is_whole = list_elements(boxes) == SQUARE
        assert tiles((2, 2), set(boxes)) == is_whole, boxes


def manifest(rank: int, *parts: TensorPart, names: tuple[str, ...] = ("w",)) -> Manifest:
    values = {}
    for name in names:
        values[name] = {"$map": [["inner", [{"$tensor": name}]]]}
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


def part(
    offset: int,
    extent: int,
    *,
    size: int = 4,
    key: str = "w",
) -> TensorPart:
    return TensorPart(
        key=key,
        dtype="uint8",
        shape=(size,),
        offset=(offset,),
        extent=(extent,),
        at=0,
        bytes=extent,
    )


def test_incomplete_repeated_or_unwritten_tensor_is_damage() -> None:
    check_manifests([manifest(0, part(0, 2)), manifest(1, part(2, 2))])
    check_manifests([manifest(0, part(0, 4)), manifest(1, part(0, 4))])
    check_manifests(
        [
            manifest(0, part(0, 4)),
            manifest(
                1,
                part(0, 3, size=3),
            ),
        ]
    )
    for parts in ([part(0, 2)], [part(0, 3), part(2, 2)], [part(0, 2), part(1, 2)]):
        manifests = []
        for rank, rank_part in enumerate(parts):
            manifests.append(manifest(rank, rank_part))
        with pytest.raises(Damaged, match="tensor w do not make up"):
            check_manifests(manifests)
    other_dtype = replace(part(0, 4), dtype="int8")
    with pytest.raises(Damaged, match="has two dtypes"):
        check_manifests([manifest(0, part(0, 4)), manifest(1, other_dtype)])
    with pytest.raises(Damaged, match="no rank wrote tensor v"):
        check_manifests([manifest(0, part(0, 4), names=("w", "v"))])


def test_save_with_an_incomplete_tensor_gets_no_commit(tmp_path: Path) -> None:
    storage = LocalStorage.open(str(tmp_path))
    half = memoryview(bytearray(2))
    manifests: list[Manifest] = []
    for rank in (0, 1):
        job = Job(
            save=1,
            memory=0,
            length=2,
            shard_bytes=64,
            manifest=manifest(rank, part(0, 2)),
        )
        manifests.append(
            upload(
                storage,
                half,
                job,
                parallel=1,
            )
        )
    with pytest.raises(Damaged, match="tensor w do not make up"):
        commit(
            storage,
            manifests[0],
            state=CommitState(),
            timeout_s=10,
            abandoned=lambda _: False,
        )
    assert committed_steps(storage, "r") == []


class StridedShard:
    """Placement of FSDP2 outside tensor parallelism, of a PyTorch that splits it wrongly."""

    dim = 0
    split_factor = 2

    def _split_tensor(self, *_: object, **__: object) -> object:
        raise NotImplementedError


def test_uneven_strided_shard_splits_last() -> None:
    placements: Any = (StridedShard(), Shard(0))
    for coordinate, interval in {
        (0, 0): (0, 0, 3),
        (0, 1): (0, 5, 3),
        (1, 0): (0, 3, 2),
        (1, 1): (0, 8, 2),
    }.items():
        rows, _ = list_intervals((10, 1), (2, 2), coordinate, placements)
        assert rows == (interval,)
