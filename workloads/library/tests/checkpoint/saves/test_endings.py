"""Starts and ends of a run: what is restored, which trainer may commit, and the exit codes."""

import json
import os
import re
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, Superseded, load_tensors
from holdfast.checkpoint.format import fence
from holdfast.checkpoint.stores.factory import open_storage
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_EVENTS, ENV_JOB
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.checkpoint.jobs import (
    STEPS,
    TUNING,
    Jobs,
    finish,
    list_committed,
    newest,
    steps_on,
)
from workloads.library.tests.checkpoint.saves import faulty_proxy as faults
from workloads.library.tests.checkpoint.saves.faulty_proxy import FaultyProxy
from workloads.library.tests.processes import children, until
from workloads.library.tests.training.elastic.gangs import free_ports

pytestmark = pytest.mark.process


def trainer(url: Path, tensor: torch.Tensor, **options: Any) -> Checkpointer:
    return Checkpointer(
        str(url),
        {"w": tensor},
        run="r",
        **{"every": 10**9, **options},
    )


def test_a_newer_trainer_fences_the_older_one(tmp_path: Path) -> None:
    """Both run in this process: a frozen trainer and the one that replaced it."""
    older = torch.zeros(4)
    newer = torch.zeros(4)
    with pytest.raises(Superseded) as superseded, trainer(tmp_path, older) as first:
        older += 1
        first.save(1)
        assert first.wait()
        with trainer(tmp_path, newer) as second:
            assert second.step == 1
            newer += 1
            second.tick(2)
        assert list_committed(tmp_path, "r") == [2, 1]
        older.fill_(99)
        first.tick(3)
    assert superseded.value.code == EXIT_BAD_INPUT
    assert f"process {os.getpid()}" in superseded.value.reason
    assert list_committed(tmp_path, "r") == [2, 1]
    assert torch.equal(load_tensors(str(tmp_path), "r")[1]["w"], torch.full((4,), 2.0))


def test_an_older_job_is_superseded_on_all_ranks(jobs: Jobs, tmp_path: Path) -> None:
    url = tmp_path / "url"
    log = tmp_path / "log"
    older = jobs.start(
        url,
        tmp_path,
        world=2,
        every=20,
        steps=10**6,
        log=str(log),
    )
    until(lambda: bool(list_committed(url)))
    newer = jobs.run(
        url,
        tmp_path,
        world=2,
        every=1,
        steps=10**6,
        kill_at="stage.begin:1",
    )
    assert -signal.SIGKILL in newer, "it was killed in its first save, and has committed nothing"
    assert finish(older) == [EXIT_BAD_INPUT, EXIT_BAD_INPUT], log.read_text()
    assert "another trainer writes run" in log.read_text()


def test_starts_leave_few_objects_behind(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for number in range(1, 9):
        assert fence.take(storage, "r") == number
    assert len(list((tmp_path / "r" / "epochs").iterdir())) <= 5


def test_a_step_that_does_not_grow_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trainer(tmp_path, torch.zeros(4)) as ckpt:
        ckpt.tick(5)
        ckpt.save(5)
        calls = (
            partial(ckpt.tick, 5),
            partial(ckpt.tick, 4),
            partial(ckpt.save, 5),
            partial(ckpt.save, 3),
        )
        for call in calls:
            with pytest.raises(InputError, match=r"ckpt\.step"):
                call()
        with pytest.raises(InputError, match="another model"), trainer(tmp_path, torch.zeros(5)):
            pytest.fail("a start that is refused takes the run from no other")
        ckpt.tick(6)
    assert list_committed(tmp_path, "r") == [6, 5]
    with trainer(tmp_path, torch.zeros(4)) as ckpt, pytest.raises(InputError, match="after step 6"):
        ckpt.tick(1)
    with Checkpointer(str(tmp_path), {"w": torch.zeros(4)}, run="typo"):
        assert "it holds other runs: r): beginning at step 0" in caplog.text


def test_a_save_that_fails_on_one_rank_fails_on_both(
    jobs: Jobs,
    tmp_path: Path,
    proxy: FaultyProxy,
    bucket: str,
) -> None:
    """A job whose last save fails is not complete. Saves between are committed, and the next start
    does the missing work.
    """
    url = f"gs://{bucket}/runs"
    log = tmp_path / "log"
    shards = re.compile(f"(step-0000000003|step-{STEPS:010d}).*rank-00001")

    def refuse_shards(method: str, path: str) -> str:
        is_refused = method == "POST" and shards.search(path)
        return faults.REFUSE_403 if is_refused else faults.PASS

    proxy.rule = refuse_shards
    run = partial(
        jobs.run,
        url,
        tmp_path,
        world=2,
        env=proxy.env,
        wait=True,
        log=str(log),
    )
    assert run() == [EXIT_RETRY, EXIT_RETRY], log.read_text()
    output = log.read_text()
    for text in ("step 3 failed", "rank 0 knows: ", "rank 1 knows: "):
        assert text in output
    assert "the last state is not stored" in output
    assert list_committed(url) == [9, 6]
    proxy.rule = lambda method, path: faults.PASS
    assert run() == [0, 0]
    assert newest(url) == STEPS


def test_a_failure_is_forgotten_once_a_later_save_is_durable(tmp_path: Path) -> None:
    blocker = tmp_path / "r" / "step-0000000001"
    tensor = torch.zeros(4)
    with trainer(tmp_path, tensor, tuning=replace(TUNING, retry_s=0.1)) as ckpt:
        blocker.parent.mkdir(exist_ok=True)
        blocker.write_text("a file where a folder must be")
        ckpt.save(1)
        assert not ckpt.wait()
        assert ckpt.failure
        assert ckpt.durable_step == 0
        blocker.unlink()
        ckpt.save(2)
        assert ckpt.wait()
        assert not ckpt.failure
        assert ckpt.durable_step == 2


@pytest.mark.parametrize("every", [1000, 20], ids=["between saves", "in a save"])
def test_a_trainer_with_a_stuck_uploader_exits_in_its_window(
    jobs: Jobs,
    tmp_path: Path,
    every: int,
) -> None:
    url = tmp_path / "url"
    log = tmp_path / "log"
    (job,) = jobs.start(
        url,
        tmp_path,
        every=every,
        steps=10**9,
        window_s=3.5,
        log=str(log),
    )
    until(lambda: bool(list_committed(url)))
    (uploader,) = children(job.pid or 0)
    os.kill(uploader, signal.SIGSTOP)
    try:
        steps_on(job)  # steps that the stopped uploader cannot store
        started_at = time.monotonic()
        os.kill(job.pid or 0, signal.SIGTERM)
        assert finish([job]) == [EXIT_PREEMPTED]
        assert time.monotonic() - started_at < 3.5 + 1.0
    finally:
        os.kill(uploader, signal.SIGKILL)
    assert "steps (" in log.read_text()
    assert "are lost" in log.read_text()


@pytest.mark.parametrize("sums", [True, False])
def test_a_survivor_exits_cleanly_and_commits_or_logs_its_loss(
    jobs: Jobs,
    tmp_path: Path,
    sums: bool,
) -> None:
    """The first rank, which has the store of the process group, dies in a sum or while the ranks
    agree on a stop.
    """
    (port,) = free_ports(1)
    meet = f"tcp://127.0.0.1:{port}"
    url = tmp_path / "url"
    log = tmp_path / "log"
    first, other = jobs.start(
        url,
        tmp_path,
        world=2,
        every=20,
        steps=10**9,
        log=str(log),
        meet=meet,
        sums=sums,
    )
    until(lambda: bool(list_committed(url)))
    steps_on(other)
    os.kill(first.pid or 0, signal.SIGSTOP)  # or both could have stopped before the kill
    for rank in (first, other):
        os.kill(rank.pid or 0, signal.SIGTERM)
    first.kill()
    assert finish([other]) == [EXIT_PREEMPTED], log.read_text()
    output = log.read_text()
    assert "Traceback" not in output, output
    # Between two steps the survivor holds the whole state, and commits it without the other rank.
    alone = re.search(r"step (\d+) committed by rank 1 alone", output)
    if alone:
        assert list_committed(url)[0] == int(alone[1]), output
    else:
        assert "are lost" in output, output


def test_a_last_save_is_tried_before_an_upload_was_measured(jobs: Jobs, tmp_path: Path) -> None:
    url = tmp_path / "url"
    events = tmp_path / "events"
    env = {
        ENV_JOB: "job",
        ENV_EVENTS: str(events),
    }
    (job,) = jobs.start(
        url,
        tmp_path,
        every=10**9,
        steps=10**9,
        window_s=60.0,
        env=env,
    )
    until(lambda: events.exists() and '"restore"' in events.read_text())
    steps_on(job)
    os.kill(job.pid or 0, signal.SIGTERM)
    assert finish([job]) == [EXIT_PREEMPTED]
    stops = []
    for text in events.read_text().splitlines():
        line = json.loads(text)
        if line["event"] == "stop":
            stops.append(line)
    (stop,) = stops
    assert list_committed(url) == [stop["step"]]
