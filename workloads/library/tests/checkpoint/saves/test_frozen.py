"""Frozen parameters that the store has are digested where they are, and not staged again."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer, Preempted, load_tensors
from holdfast.checkpoint.format import Shard
from holdfast.checkpoint.save.frozen import FrozenParameters
from holdfast.checkpoint.save.shared_shards import MIN_BYTES
from holdfast.checkpoint.save.staging import copy_into
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import (
    Piece,
    count_frozen_bytes,
    make_pieces,
    stream_bytes,
    view_memory,
)
from holdfast.checkpoint.stores.storage import crc32c
from workloads.library.tests.checkpoint.jobs import TUNING
from workloads.library.tests.checkpoint.made import make_adamw

MIB = 1 << 20
WIDTH = 1200
"""A frozen layer of 5.8 MB."""


class Adapted(nn.Module):
    def __init__(self, width: int, *, transposed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randn(width, width)
        self.base = nn.Parameter(weight.T if transposed else weight, requires_grad=False)
        self.adapter = nn.Parameter(torch.randn(20, width))


def train(
    url: Path,
    until: int,
    *,
    run: str = "r",
    width: int = WIDTH,
    transposed: bool = False,
    **options: Any,
) -> list[int]:
    """Returns the bytes that the staging memory holds after each save."""
    model = Adapted(width, transposed=transposed)
    optimizer = make_adamw(model, lr=0.01)
    held_bytes: list[int] = []
    with Checkpointer(
        url,
        {"model": model, "optimizer": optimizer},
        run=run,
        every=1,
        tuning=TUNING,
        **options,
    ) as ckpt:
        (staging,) = ckpt._writer._stagings  # pyright: ignore[reportPrivateUsage]
        for step in range(ckpt.step, until):
            train_step(model, optimizer)
            ckpt.tick(step + 1)
            assert ckpt.wait()
            held_bytes.append(512 * os.fstat(staging.descriptor).st_blocks)
    check_stored(url, run, model)
    return held_bytes


def train_step(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (model.adapter @ model.base).square().mean().backward()
    optimizer.step()


def check_stored(url: Path, run: str, model: Adapted) -> None:
    _, tensors = load_tensors(url, run, keys=["model/"])
    assert torch.equal(tensors["model/base"], model.base)
    assert torch.equal(tensors["model/adapter"], model.adapter)


def list_shared(url: Path, run: str = "r") -> list[Path]:
    return sorted((url / run / "shared").glob("*.bin"))


def digest_stored(url: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in list_shared(url)}


@pytest.mark.process
def test_stored_base_takes_no_staging_memory(tmp_path: Path) -> None:
    base_bytes = 4 * WIDTH * WIDTH
    first, second, *_ = train(tmp_path, 3)
    assert first >= base_bytes, "the first save stores it"
    assert second < MIB
    stored = digest_stored(tmp_path)
    assert max(train(tmp_path, 5)) < MIB, "a restart knows what it has restored"
    assert digest_stored(tmp_path) == stored


@pytest.mark.process
def test_adapter_on_219_mb_writes_at_most_2_5_mb_per_save(tmp_path: Path) -> None:
    """0.59 MB are trained: with Adam's moments three times that."""
    train(tmp_path, 3, width=7400)
    written_bytes: list[int] = []
    for step in range(1, 4):
        folder = tmp_path / f"r/step-{step:010d}"
        written_bytes.append(sum(path.stat().st_size for path in folder.rglob("*.*")))
    base_bytes = sum(path.stat().st_size for path in list_shared(tmp_path))
    assert base_bytes == pytest.approx(219e6, rel=0.01)
    assert 3 * 20 * 7400 * 4 < max(written_bytes) <= 2.5e6


@pytest.mark.process
@pytest.mark.parametrize("change", [False, True])
def test_last_save_at_a_stop_has_every_byte(tmp_path: Path, *, change: bool) -> None:
    """The signal comes during a save: at first of one that stores the base."""
    for _ in range(2):
        model = Adapted(WIDTH)
        optimizer = make_adamw(model, lr=0.01)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        ckpt = Checkpointer(tmp_path, state, run="r", every=10**9, tuning=TUNING)
        with pytest.raises(Preempted), ckpt:
            train_step(model, optimizer)
            ckpt.tick(ckpt.step + 1)
            ckpt.save(ckpt.step)
            train_step(model, optimizer)
            if change:
                model.base.data[3, 4] += 1
            signal.raise_signal(signal.SIGTERM)
            ckpt.tick(ckpt.step + 1)
        assert ckpt.durable_step == ckpt.step
        check_stored(tmp_path, "r", model)


@pytest.mark.process
def test_transposed_base_is_staged(tmp_path: Path) -> None:
    base_bytes = 4 * WIDTH * WIDTH
    assert min(train(tmp_path, 3, transposed=True)) >= base_bytes


@pytest.mark.process
def test_new_run_stores_the_base_that_it_begins_from(tmp_path: Path) -> None:
    """Shared objects are those of one run: to name another's would lose them with its folder."""
    train(tmp_path, 2)
    train(tmp_path, 4, run="other", start_from=f"{tmp_path}/r")
    assert [path.name for path in list_shared(tmp_path, "other")] == [
        path.name for path in list_shared(tmp_path)
    ]


def make_frozen(draw: random.Random) -> nn.Module:
    """Makes a module of frozen parameters of many sizes, and a trained one."""
    module = nn.Module()
    dtypes = (torch.float32, torch.bfloat16, torch.uint8, torch.float64)
    for number in range(draw.randint(1, 12)):
        shape = (draw.choice((0, 1, 3, 777)), draw.randint(1, 900))
        tensor = torch.randint(0, 200, shape).to(draw.choice(dtypes))
        module.register_parameter(f"p{number}", nn.Parameter(tensor, requires_grad=False))
    large = torch.randn(MIN_BYTES // 4 + draw.randint(0, 99))
    module.register_parameter("large", nn.Parameter(large, requires_grad=False))
    module.register_parameter("trained", nn.Parameter(torch.randn(5)))
    return module


def make_stream(module: nn.Module) -> tuple[list[Piece], int, memoryview]:
    captured = capture({"model": module})
    pieces = make_pieces(captured, 0, 1)
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    return pieces, count_frozen_bytes(captured, pieces), view_memory(stream)


def make_shards(stream: memoryview, size: int) -> list[Shard]:
    shards: list[Shard] = []
    for start in range(0, len(stream), size):
        data = stream[start : start + size]
        shards.append(Shard(bytes=len(data), crc32c=crc32c(data), sha256="0" * 64))
    return shards


@pytest.mark.parametrize("seed", range(20))
def test_digests_equal_those_that_an_uploader_computes(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    module = make_frozen(draw)
    pieces, frozen_bytes, stream = make_stream(module)
    size = draw.choice((4096, 100_003, MIB, 1 << 30))
    shards = make_shards(stream[:frozen_bytes], size)
    frozen = FrozenParameters(shards)
    assert frozen.find_stored(pieces, frozen_bytes, size) == tuple(shards)
    filled = [parameter for parameter in module.parameters() if parameter.numel() > 0]
    changed = draw.choice([parameter for parameter in filled if not parameter.requires_grad])
    changed.data.view(-1)[draw.randrange(changed.numel())] += 1
    assert frozen.find_stored(pieces, frozen_bytes, size) == ()


def test_shards_with_another_size_are_not_named() -> None:
    pieces, frozen_bytes, stream = make_stream(make_frozen(random.Random(0)))
    shards = make_shards(stream[:frozen_bytes], 4096)
    assert FrozenParameters(shards).find_stored(pieces, frozen_bytes, 8192) == ()
    assert FrozenParameters(shards[:-1]).find_stored(pieces, frozen_bytes, 4096) == ()
    assert FrozenParameters().find_stored(pieces, frozen_bytes, 4096) == ()


def test_shard_that_is_not_shared_ends_the_list() -> None:
    """It was stored for one checkpoint, and goes with it."""
    pieces, frozen_bytes, stream = make_stream(make_frozen(random.Random(0)))
    shards = make_shards(stream[:frozen_bytes], 4096)
    unshared = Shard(bytes=shards[3].bytes, crc32c=shards[3].crc32c)
    frozen = FrozenParameters([*shards[:3], unshared, *shards[4:]])
    assert frozen.find_stored(pieces, frozen_bytes, 4096) == ()


def test_digest_ahead_is_good_for_one_save() -> None:
    module = make_frozen(random.Random(0))
    pieces, frozen_bytes, stream = make_stream(module)
    shards = tuple(make_shards(stream[:frozen_bytes], 4096))
    frozen = FrozenParameters()
    # Nothing is known yet: the save in flight is the one that stores them.
    frozen.keep(frozen.find_stored(pieces, frozen_bytes, 4096))
    frozen.record(shards)
    frozen.keep(frozen.find_stored(pieces, frozen_bytes, 4096))
    module.get_parameter("large").data += 1
    assert frozen.find_stored(pieces, frozen_bytes, 4096) == shards
    assert frozen.find_stored(pieces, frozen_bytes, 4096) == ()
