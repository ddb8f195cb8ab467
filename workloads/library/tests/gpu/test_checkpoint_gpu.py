"""Checkpoints of GPU state: pinned staging, a real round trip, and copying that overlaps with the
next step.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import Piece

pytestmark = pytest.mark.gpu
MIB = 1 << 20
State = dict[str, Any]


def build() -> State:
    torch.manual_seed(2)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda().bfloat16()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
    }


def advance(state: State) -> None:
    state["optimizer"].zero_grad()
    state["model"](
        torch.randn(16, 1024, device="cuda", dtype=torch.bfloat16)
    ).square().mean().backward()
    state["optimizer"].step()


def train_with_starts(
    folder: Path, *ends: int, every: int, overlap: bool = False
) -> list[torch.Tensor]:
    """Trains with a start for each of `ends`, and returns the bits."""
    for end in ends:
        state = build()
        torch.manual_seed(9)
        with Checkpointer(str(folder), state, run="r", every=every) as ckpt:
            for step in range(ckpt.step, end):
                with ckpt.lock() if overlap else nullcontext():
                    advance(state)
                ckpt.tick(step + 1)
    return [tensor.cpu().clone() for tensor in capture(state).tensors.values()]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_gpu_run_resumes_bit_exact(tmp_path: Path, overlap: bool) -> None:
    whole = train_with_starts(tmp_path / "w", 8, every=100)
    resumed = train_with_starts(tmp_path / "h", 5, 8, every=2, overlap=overlap)
    for a, b in zip(resumed, whole, strict=True):
        assert torch.equal(a, b)


class Large(torch.nn.Module):
    """Copies of it take tens of milliseconds."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(mib * MIB // 4, device="cuda"))
        self.register_buffer("passes", torch.zeros(64 * MIB // 4, device="cuda"))


def seconds(work: Callable[[], object], *, before: Callable[[], object] = lambda: None) -> float:
    """Returns the seconds until the GPU could compute what comes next; the least of five."""
    times: list[float] = []
    for _ in range(5):
        before()
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        work()
        torch.cuda.current_stream().synchronize()
        times.append(time.perf_counter() - start_s)
    return min(times)


def test_a_save_under_lock_overlaps_with_the_next_step(tmp_path: Path) -> None:
    model = Large(1024)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def compute() -> None:
        for _ in range(50):
            matrix @ matrix

    with Checkpointer(
        str(tmp_path),
        {"model": model},
        run="r",
        every=1000,
        keep=1,
    ) as ckpt:
        steps = iter(range(1, 100))
        save = lambda: ckpt.save(next(steps))  # noqa: E731
        save()  # waits for the memory
        copying = seconds(save, before=ckpt.wait)
        alone = seconds(compute, before=ckpt.wait)
        with ckpt.lock():
            pass
        both = seconds(lambda: (save(), compute()), before=ckpt.wait)
        print(
            f"a save {copying:.3f} s, a step {alone:.3f} s, a step after a save under lock()"
            f" {both:.3f} s"
        )
        assert both - alone <= 0.5 * copying


def test_under_lock_a_state_is_saved_as_it_was(tmp_path: Path) -> None:
    """A forward pass changes buffers while parameters are copied; the optimizer steps after it."""
    model = Large(1024)
    with Checkpointer(
        str(tmp_path),
        {"model": model},
        run="r",
        every=1000,
    ) as ckpt:
        with ckpt.lock():
            pass
        ckpt.save(1)  # waits for its memory
        assert ckpt.wait()
        # the first launch of a kernel waits for all that the GPU does
        model.get_buffer("passes").add_(0)
        # half a second, in which all that follows is queued on the GPU
        torch.cuda._sleep(1_000_000_000)
        ckpt.save(2)
        model.get_buffer("passes").add_(1)
        with ckpt.lock(), torch.no_grad():
            model.weight.add_(1)
        assert ckpt.wait()
    _, saved = load_tensors(tmp_path, "r", step=2)
    changed = {}
    for key, tensor in saved.items():
        if key.startswith("model/"):
            changed[key] = int(tensor.count_nonzero())
    assert changed == {"model/weight": 0, "model/passes": 0}


def large_piece(size: int, device: str = "cuda") -> Piece:
    part = TensorPart(
        key="t",
        dtype="uint8",
        shape=(size,),
        offset=(0,),
        extent=(size,),
        at=0,
        bytes=size,
    )
    return Piece(part=part, local=torch.empty(size, dtype=torch.uint8, device=device).random_())


def test_memory_that_outlived_another_process_is_pinned_too() -> None:
    """Such memory belongs to a launcher whose ranks start again after a node was lost."""
    descriptor = os.memfd_create("kept")
    os.ftruncate(descriptor, 2 * MIB)
    staging = Staging(descriptor)
    pieces = [large_piece(MIB)]
    staging.stage(pieces)
    staging.wait()
    assert staging._buffer.is_pinned()  # pyright: ignore[reportPrivateUsage]
    staging.close()


def test_a_gpu_that_is_not_the_current_one_is_waited_for(
    require: Callable[[object, str], None],
) -> None:
    require(torch.cuda.device_count() > 1, "one GPU only")
    staging = Staging()
    pieces = [large_piece(1024 * MIB, "cuda:1")]
    for _ in range(3):  # the first waits for its memory
        pieces[0].local.random_()
        staging.stage(pieces)
        staging.wait()
        assert torch.equal(staging._buffer, pieces[0].local.cpu())  # pyright: ignore[reportPrivateUsage]
    staging.close()
