"""PyTorch's own dcp.save and dcp.load over our format, on other world sizes, with FSDP2's DTensors and with damage."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from holdfast.checkpoint.dcp import HoldfastReader, HoldfastWriter
from holdfast.checkpoint.stores.opening import open_storage
from workloads.library.tests.checkpoint.jobs import TUNING, Jobs, finish

pytestmark = pytest.mark.process
# DCP tells a single process that it is one.
alone = pytest.mark.filterwarnings("ignore:torch.distributed is")
WIDTHS = (33, 17)  # neither divides by the world sizes


def build(world: int) -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, WIDTHS[0]), torch.nn.Linear(WIDTHS[0], WIDTHS[1]))
    if world > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}


def step(state: dict[str, Any], number: int) -> None:
    torch.manual_seed(number)
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 8)).square().mean().backward()
    state["optimizer"].step()


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    from holdfast.checkpoint.state import capture

    tensors = {key: t for key, t in capture(state).tensors.items() if not key.startswith("__")}
    return {key: (t.full_tensor() if isinstance(t, DTensor) else t).clone() for key, t in tensors.items()}


def same(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> bool:
    return found.keys() == truth.keys() and all(torch.equal(found[key], truth[key]) for key in truth)


def in_group(body: Callable[..., None], rank: int, world: int, rendezvous: str, arguments: tuple[Any, ...]) -> None:
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timeout)
    body(world, *arguments)
    dist.barrier()
    dist.destroy_process_group()


def run(
    jobs: Jobs, folder: Path, world: int, body: Callable[..., None], *arguments: Any, timeout_s: float = 120
) -> None:
    rendezvous = str(folder / f"rendezvous-{len(list(folder.glob('rendezvous*')))}")
    ranks = [
        jobs.context.Process(target=in_group, args=(body, rank, world, rendezvous, arguments)) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    assert finish(ranks, timeout_s) == [0] * world


def dcp_state(world: int, value: float) -> dict[str, Any]:
    state = build(world)
    model = state["model"].state_dict()
    for tensor in model.values():
        torch.nn.init.constant_(tensor, value)
    return {"model": model, "epoch": 4, "note": {"names": ["a", "b"], "rate": 0.5}}


def dcp_save(world: int, url: str, number: int) -> None:
    state = dcp_state(world, number / 2)
    dcp.save(state, storage_writer=HoldfastWriter(url, run="r", step=number, tuning=TUNING))


def dcp_load(world: int, url: str, number: int, *skipped: int) -> None:
    state = dcp_state(world, 0.0)
    state["epoch"] = 0
    state["note"] = {"names": [], "rate": 0.0}
    reader = HoldfastReader(url, run="r", tuning=TUNING)
    dcp.load(state, storage_reader=reader)
    assert state["epoch"] == 4 and state["note"] == {"names": ["a", "b"], "rate": 0.5}
    for tensor in state["model"].values():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(full, torch.full_like(full, number / 2))
    assert reader.step == number and [step for step, _ in reader.skipped] == [*skipped]


def dcp_refuses(world: int, url: str, step: int | None) -> None:
    with pytest.raises(dcp.CheckpointException, match="none of them verifies") as caught:
        dcp.load(dcp_state(world, 0.0), storage_reader=HoldfastReader(url, run="r", step=step, tuning=TUNING))
    assert "crc32c" in str(caught.value)


@pytest.mark.parametrize(("first", "second"), [(2, 3), (2, 1), (1, 2)])
def test_dcp_saves_and_loads_our_format_across_world_sizes(jobs: Jobs, tmp_path: Path, first: int, second: int) -> None:
    url = str(tmp_path / "url")
    run(jobs, tmp_path, first, dcp_save, url, 7)
    run(jobs, tmp_path, second, dcp_load, url, 7)


def flip(step: Path, rank: int) -> None:
    shard = next(step.rglob(f"rank-{rank:05d}-*.bin"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)


@pytest.mark.parametrize(("world", "rank"), [(2, 1), (3, 0)])
def test_dcp_load_falls_back_on_every_rank_where_one_finds_damage(
    jobs: Jobs, tmp_path: Path, world: int, rank: int
) -> None:
    url = tmp_path / "url"
    for number in (5, 7):
        run(jobs, tmp_path, 2, dcp_save, str(url), number)
    flip(url / "r/step-0000000007", rank)
    run(jobs, tmp_path, 2, dcp_refuses, str(url), 7)
    run(jobs, tmp_path, world, dcp_load, str(url), 5, 7)
    flip(url / "r/step-0000000005", 0)
    run(jobs, tmp_path, world, dcp_refuses, str(url), None)


def saved_alone(url: Path, step: int, **state: Any) -> None:
    dcp.save(state, storage_writer=HoldfastWriter(str(url), run="r", step=step), no_dist=True)


def loaded_alone(url: Path) -> torch.Tensor:
    loaded = {"w": torch.zeros(1000)}
    dcp.load(loaded, storage_reader=HoldfastReader(str(url), run="r"), no_dist=True)
    return loaded["w"]


@alone
def test_dcp_load_into_another_dtype_converts(tmp_path: Path) -> None:
    saved = torch.arange(1000, dtype=torch.bfloat16)
    saved_alone(tmp_path, 1, w=saved)
    assert torch.equal(loaded_alone(tmp_path), saved.float())


@alone
def test_dcp_load_passes_over_an_older_step_of_another_shape(tmp_path: Path) -> None:
    for step, width in ((1, 1000), (2, 2000), (3, 1000)):
        saved_alone(tmp_path, step, w=torch.full((width,), float(step)))
    flip(tmp_path / "r/step-0000000003", 0)
    assert torch.equal(loaded_alone(tmp_path), torch.ones(1000))


@alone
def test_dcp_objects_are_stored_as_json(tmp_path: Path) -> None:
    url = str(tmp_path / "url")
    saved_alone(tmp_path / "url", 1, w=torch.ones(3), n={"a": 1})
    stored = b"".join(p.read_bytes() for p in (tmp_path / "url").rglob("*") if p.is_file())
    assert b"PK\x03\x04" not in stored and b"torch" not in stored
    assert [s.name.endswith((".bin", ".json")) for s in open_storage(url).list("")] == [True] * 3
