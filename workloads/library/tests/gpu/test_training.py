"""The trainer on a GPU: nccl, a real notice, and the same bits after the resume."""

import subprocess
from pathlib import Path

import pytest

from tests import support
from workloads.library.tests.processes import children
from workloads.library.tests.training.runs import Run, notice, power_loss

pytestmark = pytest.mark.gpu


def one_gpu(folder: Path) -> Run:
    return Run(
        folder=folder,
        steps=60,
        every=10,
        ranks=1,
        options=("--device", "cuda"),
    )


def uses_gpu(pid: int) -> bool:
    """Returns whether CUDA has a context in that process."""
    return "/dev/nvidia" in Path(f"/proc/{pid}/maps").read_text()


def notice_to_agent(process: subprocess.Popen[str]) -> None:
    assert any(uses_gpu(rank) for rank in children(process.pid))
    assert not uses_gpu(process.pid), "what it forks could not use CUDA: infra/decisions/0031"
    notice(process)


def test_a_notice_and_a_power_loss_under_nccl_change_no_bit(tmp_path: Path) -> None:
    undisturbed = one_gpu(tmp_path / "undisturbed")
    run = one_gpu(tmp_path / "evicted")
    assert undisturbed.complete() == 0, undisturbed.log()
    assert run.interrupt(15, notice_to_agent) == 143, run.log()
    assert run.interrupt(33, power_loss) == 137
    assert run.complete() == 0, run.log()
    assert run.digest == undisturbed.digest
    assert run.losses() == undisturbed.losses()
    for line in run.of("start"):
        assert line["accelerator"].startswith("NVIDIA")


def test_all_gpus_stop_at_the_same_step(tmp_path: Path) -> None:
    import torch

    support.require(torch.cuda.device_count() > 1, "one GPU only")
    run = one_gpu(tmp_path)
    run.ranks = torch.cuda.device_count()
    run.options = (*run.options, "--set", f"batch={8 * run.ranks}")
    assert run.interrupt(15, notice) == 143, run.log()
    assert len(run.of("stop")) == 1
