"""Checkpoints of GPU state: pinned staging, a real round trip, and copying that overlaps with the next step."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.state.tensors import laid_out, stream_bytes

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture(autouse=True)
def gpu(require: Callable[[object, str], None]) -> None:
    require(torch.cuda.is_available(), "no GPU")


def build() -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda().bfloat16()
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)}


def advance(state: dict[str, torch.nn.Module | torch.optim.Optimizer]) -> None:
    model, optimizer = state["model"], state["optimizer"]
    assert isinstance(model, torch.nn.Module) and isinstance(optimizer, torch.optim.Optimizer)
    optimizer.zero_grad()
    model(torch.randn(16, 1024, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()


def bits(state: dict[str, torch.nn.Module | torch.optim.Optimizer]) -> list[torch.Tensor]:
    from holdfast.checkpoint.state import capture

    return [t.cpu().clone() for t in capture(state).tensors.values()]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_gpu_run_resumes_bit_exact(tmp_path: Path, overlap: bool) -> None:
    whole, halves = build(), build()
    torch.manual_seed(9)
    with Checkpointer(str(tmp_path / "w"), whole, run="r", every=100) as ckpt:
        for step in range(8):
            advance(whole)
            ckpt.tick(step + 1)
    expected = bits(whole)
    torch.manual_seed(9)
    for end in (5, 8):
        halves = build()
        with Checkpointer(str(tmp_path / "h"), halves, run="r", every=2) as ckpt:
            for step in range(ckpt.step, end):
                if overlap:
                    with ckpt.lock():
                        advance(halves)
                else:
                    advance(halves)
                ckpt.tick(step + 1)
    assert all(torch.equal(a, b) for a, b in zip(bits(halves), expected, strict=True))


def test_pinned_staging_copies_near_the_limit_of_the_bus() -> None:
    size = 1024 * MIB
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
    part = TensorPart(key="t", dtype="uint8", shape=(size,), offset=(0,), extent=(size,), at=0, bytes=size)
    pieces = laid_out([(part, source)])
    assert stream_bytes(pieces) == size
    staging = Staging()
    staging.prepare(pieces)
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def seconds(copy: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            copy()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)

    def stage() -> None:
        staging.stage(pieces)
        staging.wait()

    ours, limit = seconds(stage), seconds(lambda: pinned.copy_(source, non_blocking=True))
    print(
        f"{torch.cuda.get_device_name()}: staged {size / ours / 1e9:.1f} GB/s, pinned copy {size / limit / 1e9:.1f} GB/s"
    )
    staging.close()
    assert ours <= 1.25 * limit
