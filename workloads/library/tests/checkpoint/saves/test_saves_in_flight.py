"""Saves in flight: one is staged without waiting, and the next one waits for it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, Tuning, load_tensors
from holdfast.checkpoint.peers.slots import SLOTS
from holdfast.checkpoint.save import writer as saving
from holdfast.lint.rules.elastic import COPIES_WITHOUT_PEER, MEMORIES, MEMORIES_WITH_FOLDER
from holdfast.runtime.pidfiles import is_running
from holdfast.training.sharded.launcher import MEMORIES as OWN_MEMORIES
from holdfast.training.sharded.launcher import MEMORIES_WITH_FOLDER as OWN_MEMORIES_WITH_FOLDER
from workloads.library.tests.checkpoint.jobs import list_committed
from workloads.library.tests.processes import children, until

pytestmark = pytest.mark.process
STATE_BYTES = 1 << 20


@contextmanager
def training(url: Path, **tuned: Any) -> Iterator[tuple[Checkpointer, torch.Tensor, int]]:
    """Yields a checkpointer, its state, and the process id of its uploader."""
    before = set(children(os.getpid()))
    tensor = torch.zeros(STATE_BYTES // 4)
    with Checkpointer(
        str(url),
        {"w": tensor},
        run="r",
        every=10**9,
        keep=9,
        tuning=Tuning(**tuned),
    ) as ckpt:
        (uploader,) = set(children(os.getpid())) - before
        yield ckpt, tensor, uploader


def save(
    ckpt: Checkpointer,
    tensor: torch.Tensor,
    step: int,
) -> None:
    tensor.fill_(step)
    ckpt.save(step)


def count_staged_bytes() -> int:
    sizes = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        if "holdfast-staging" in os.path.realpath(descriptor) and descriptor.exists():
            status = descriptor.stat()
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def test_a_save_returns_at_once_and_the_next_one_waits(tmp_path: Path) -> None:
    with training(tmp_path) as (ckpt, tensor, uploader):
        os.kill(uploader, signal.SIGSTOP)
        save(ckpt, tensor, 1)
        assert ckpt.busy
        assert not list_committed(tmp_path, "r")

        def resume_uploader() -> None:
            released.set()
            os.kill(uploader, signal.SIGCONT)

        released = threading.Event()
        threading.Timer(0.5, resume_uploader).start()
        save(ckpt, tensor, 2)
        assert released.is_set()
        assert 1 in list_committed(tmp_path, "r")
        assert ckpt.wait()
        assert not ckpt.busy
        assert STATE_BYTES <= count_staged_bytes() <= 1.1 * STATE_BYTES
    assert list_committed(tmp_path, "r") == [2, 1]
    for step in (1, 2):
        _, tensors = load_tensors(tmp_path, "r", step=step)
        assert torch.equal(tensors["w"], torch.full_like(tensors["w"], step))


def test_an_ending_rank_kills_its_uploader_and_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher waits, while the rank itself ends."""
    waits: list[float | None] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        return 0

    with monkeypatch.context() as patched, training(tmp_path) as (ckpt, _, uploader):
        patched.setattr(subprocess.Popen, "wait", wait)
        ckpt._writer.abandon_upload()  # pyright: ignore[reportPrivateUsage]
    assert waits == [0.0]
    os.waitpid(uploader, 0)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores"
)
def test_an_uploader_uses_cores_without_training_threads(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    try:
        for threads in (1, len(cores)):
            torch.set_num_threads(threads)
            with training(tmp_path / str(threads)) as (ckpt, tensor, uploader):
                save(ckpt, tensor, 1)
                assert ckpt.wait()
                assert os.sched_getaffinity(uploader) == set(cores[threads:] or cores)
    finally:
        torch.set_num_threads(before)


def test_a_stuck_upload_is_announced_and_blocks_for_a_bounded_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(saving, "ANNOUNCE_WAIT_AFTER_S", 0.2)
    with training(tmp_path, wait_s=1.0) as (ckpt, tensor, uploader):
        os.kill(uploader, signal.SIGSTOP)
        try:
            save(ckpt, tensor, 1)
            started_at = time.monotonic()
            save(ckpt, tensor, 2)
            assert time.monotonic() - started_at > 1.0
            assert "training waits for room: the upload of step 1 has not finished" in caplog.text
            assert "checkpoint of step 2 failed: rank 0: the upload of step 1" in caplog.text
            assert "step 1 has not finished" in ckpt.failure
            started_at = time.monotonic()
            for step in range(3, 23):
                save(ckpt, tensor, step)
            assert time.monotonic() - started_at < 10, "each save waited again for the same upload"
        finally:
            os.kill(uploader, signal.SIGCONT)
        assert ckpt.wait()
        assert not ckpt.failure
        save(ckpt, tensor, 23)
        assert ckpt.wait()
    assert list_committed(tmp_path, "r") == [23, 1]


def test_a_child_that_outlives_its_trainer_does_not_block_the_uploader(tmp_path: Path) -> None:
    url = tmp_path / "url"
    trainer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            FORKING,
            str(url),
            str(tmp_path / "pids"),
        ]
    )
    until(lambda: (tmp_path / "pids").exists())
    uploader, child = map(int, (tmp_path / "pids").read_text().split())
    try:
        trainer.kill()
        trainer.wait()
        until(lambda: not is_running(uploader))
        assert is_running(child), "the child must outlive the trainer"
    finally:
        for pid in filter(is_running, (child, uploader)):
            os.kill(pid, signal.SIGKILL)


FORKING = """
import os, sys, time, torch
from holdfast.checkpoint import Checkpointer
with Checkpointer(sys.argv[1], {"w": torch.ones(4)}, run="r", every=1) as ckpt:
    ckpt.tick(1)
    assert ckpt.wait()
    uploader = ckpt._writer._uploader._process.pid
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    open(sys.argv[2] + ".new", "w").write(f"{uploader} {child}")
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(600)
"""


def test_the_linter_counts_all_memories_for_a_sharded_gang() -> None:
    # Its own, and a complete and an arriving copy of a neighbor's.
    assert COPIES_WITHOUT_PEER == 1
    assert OWN_MEMORIES + SLOTS == MEMORIES
    assert OWN_MEMORIES_WITH_FOLDER == MEMORIES_WITH_FOLDER
