"""Frozen parameters that the store has are digested where they are, and not staged again."""

import os
import random
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer, Preempted, load_tensors
from holdfast.checkpoint.format import Shard
from holdfast.checkpoint.save import frozen as frozen_module
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
        if transposed:
            weight = weight.T
        self.base = nn.Parameter(
            weight,
            requires_grad=False,
        )
        adapter = torch.randn(20, width)
        self.adapter = nn.Parameter(adapter)


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
    state: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
    }
    with Checkpointer(
        url,
        state,
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
            status = os.fstat(staging.descriptor)
            held_bytes.append(512 * status.st_blocks)
    check_stored(url, run, model)
    return held_bytes


def train_step(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    output = model.adapter @ model.base
    squares = output.square()
    loss = squares.mean()
    loss.backward()
    optimizer.step()


def check_stored(url: Path, run: str, model: Adapted) -> None:
    _, tensors = load_tensors(
        url,
        run,
        keys=["model/"],
    )
    base = tensors["model/base"]
    assert torch.equal(base, model.base)
    adapter = tensors["model/adapter"]
    assert torch.equal(adapter, model.adapter)


def list_shared(url: Path, run: str = "r") -> list[Path]:
    folder = url / run / "shared"
    paths = folder.glob("*.bin")
    return sorted(paths)


def list_shared_names(url: Path, run: str) -> list[str]:
    names: list[str] = []
    for path in list_shared(url, run):
        names.append(path.name)
    return names


def read_modification_times(url: Path) -> dict[Path, int]:
    times: dict[Path, int] = {}
    for path in list_shared(url):
        status = path.stat()
        times[path] = status.st_mtime_ns
    return times


def count_bytes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        status = path.stat()
        total += status.st_size
    return total


@pytest.mark.process
def test_stored_base_takes_no_staging_memory(tmp_path: Path) -> None:
    base_bytes = 4 * WIDTH * WIDTH
    first, second, *_ = train(tmp_path, 3)
    assert first >= base_bytes, "the first save stores it"
    assert second < MIB
    stored = read_modification_times(tmp_path)
    held_bytes = train(tmp_path, 5)
    assert max(held_bytes) < MIB, "a restart knows what it has restored"
    assert read_modification_times(tmp_path) == stored


@pytest.mark.process
def test_adapter_on_219_mb_writes_at_most_2_5_mb_per_save(tmp_path: Path) -> None:
    """0.59 MB are trained: with Adam's moments three times that."""
    train(tmp_path, 3, width=7400)
    written_bytes: list[int] = []
    for step in range(1, 4):
        folder = tmp_path / f"r/step-{step:010d}"
        files = folder.rglob("*.*")
        total = count_bytes(files)
        written_bytes.append(total)
    shared = list_shared(tmp_path)
    base_bytes = count_bytes(shared)
    assert base_bytes == pytest.approx(219e6, rel=0.01)
    adapter_bytes = 20 * 7400 * 4
    largest = max(written_bytes)
    assert largest > 3 * adapter_bytes
    assert largest <= 2.5e6


@pytest.mark.process
@pytest.mark.parametrize("change", [False, True])
def test_last_save_at_a_stop_has_every_byte(tmp_path: Path, *, change: bool) -> None:
    """The signal comes during a save, which in the first start is the one that stores the base."""
    for _ in range(2):
        model = Adapted(WIDTH)
        optimizer = make_adamw(model, lr=0.01)
        state: dict[str, Any] = {
            "model": model,
            "optimizer": optimizer,
        }
        ckpt = Checkpointer(
            tmp_path,
            state,
            run="r",
            every=10**9,
            tuning=TUNING,
        )
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
def test_last_save_does_not_count_a_digest_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save before waited for its digest as long as the window; the last one does not wait."""
    train(tmp_path, 2)
    window_s = 5.0
    delays_s = [window_s]
    digest = frozen_module._digest  # pyright: ignore[reportPrivateUsage]

    def digest_slowly(pieces: list[Piece], stretch: range) -> str:
        if delays_s:
            time.sleep(delays_s.pop())
        return digest(pieces, stretch)

    monkeypatch.setattr(frozen_module, "_digest", digest_slowly)
    model = Adapted(WIDTH)
    optimizer = make_adamw(model, lr=0.01)
    ckpt = Checkpointer(
        tmp_path,
        {"model": model, "optimizer": optimizer},
        run="r",
        every=10**9,
        window_s=window_s,
        tuning=TUNING,
    )
    with pytest.raises(Preempted), ckpt:
        train_step(model, optimizer)
        ckpt.tick(ckpt.step + 1)
        ckpt.save(ckpt.step)
        assert not delays_s
        assert ckpt.wait()
        train_step(model, optimizer)
        signal.raise_signal(signal.SIGTERM)
        ckpt.tick(ckpt.step + 1)
    assert ckpt.durable_step == ckpt.step
    check_stored(tmp_path, "r", model)


@pytest.mark.process
def test_transposed_base_is_staged(tmp_path: Path) -> None:
    base_bytes = 4 * WIDTH * WIDTH
    held_bytes = train(
        tmp_path,
        3,
        transposed=True,
    )
    assert min(held_bytes) >= base_bytes


@pytest.mark.process
def test_new_run_stores_the_base_that_it_begins_from(tmp_path: Path) -> None:
    """Shared objects are those of one run: to name another's would lose them with its folder."""
    train(tmp_path, 2)
    train(
        tmp_path,
        4,
        run="other",
        start_from=f"{tmp_path}/r",
    )
    names = list_shared_names(tmp_path, "other")
    assert names == list_shared_names(tmp_path, "r")


def make_frozen(draw: random.Random) -> nn.Module:
    """Makes a module of frozen parameters of many sizes, and a trained one."""
    module = nn.Module()
    dtypes = (
        torch.float32,
        torch.bfloat16,
        torch.uint8,
        torch.float64,
    )
    count = draw.randint(1, 12)
    for number in range(count):
        rows = draw.choice((0, 1, 3, 777))
        columns = draw.randint(1, 900)
        dtype = draw.choice(dtypes)
        numbers = torch.randint(
            0,
            200,
            (rows, columns),
        )
        tensor = numbers.to(dtype)
        add_frozen(module, f"p{number}", tensor)
    length = MIN_BYTES // 4 + draw.randint(0, 99)
    large = torch.randn(length)
    add_frozen(module, "large", large)
    small = torch.randn(5)
    trained = nn.Parameter(small)
    module.register_parameter("trained", trained)
    return module


def add_frozen(
    module: nn.Module,
    name: str,
    tensor: torch.Tensor,
) -> None:
    parameter = nn.Parameter(
        tensor,
        requires_grad=False,
    )
    module.register_parameter(name, parameter)


def make_stream(module: nn.Module) -> tuple[list[Piece], int, memoryview]:
    captured = capture({"model": module})
    pieces = make_pieces(captured, 0, 1)
    length = stream_bytes(pieces)
    stream = torch.zeros(
        length,
        dtype=torch.uint8,
    )
    copy_into(stream, pieces)
    frozen_bytes = count_frozen_bytes(captured, pieces)
    memory = view_memory(stream)
    return pieces, frozen_bytes, memory


def make_shards(stream: memoryview, size: int) -> list[Shard]:
    shards: list[Shard] = []
    for start in range(0, len(stream), size):
        end = start + size
        data = stream[start:end]
        shard = Shard(
            bytes=len(data),
            crc32c=crc32c(data),
            sha256="0" * 64,
        )
        shards.append(shard)
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
    candidates: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            continue
        if parameter.numel() > 0:
            candidates.append(parameter)
    changed = draw.choice(candidates)
    place = draw.randrange(changed.numel())
    values = changed.data.view(-1)
    values[place] += 1
    assert frozen.find_stored(pieces, frozen_bytes, size) == ()


def test_shards_with_another_size_are_not_named() -> None:
    draw = random.Random(0)
    module = make_frozen(draw)
    pieces, frozen_bytes, stream = make_stream(module)
    shards = make_shards(stream[:frozen_bytes], 4096)
    frozen = FrozenParameters(shards)
    assert frozen.find_stored(pieces, frozen_bytes, 8192) == ()
    prefix = FrozenParameters(shards[:-1])
    assert prefix.find_stored(pieces, frozen_bytes, 4096) == ()
    empty = FrozenParameters()
    assert empty.find_stored(pieces, frozen_bytes, 4096) == ()


def test_shard_that_is_not_shared_ends_the_list() -> None:
    """Such a shard was stored for one checkpoint, and is deleted with it."""
    draw = random.Random(0)
    module = make_frozen(draw)
    pieces, frozen_bytes, stream = make_stream(module)
    shards = make_shards(stream[:frozen_bytes], 4096)
    shared = shards[3]
    shards[3] = Shard(
        bytes=shared.bytes,
        crc32c=shared.crc32c,
    )
    frozen = FrozenParameters(shards)
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
