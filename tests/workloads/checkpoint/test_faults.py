"""A store that misbehaves: nothing committed is lost, training goes on, and every rank is told."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.contract.lifecycle import EXIT_PREEMPTED
from tests.workloads.checkpoint import faulty_proxy as faults
from tests.workloads.checkpoint.faulty_proxy import FaultyProxy, Rule, storm
from tests.workloads.checkpoint.jobs import RUN, STEPS, Jobs, finish, newest
from workloads.checkpoint.storage import open_storage

pytestmark = pytest.mark.process


@contextmanager
def proxied(emulator: str, rule: Rule) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(emulator, rule)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.mark.parametrize(
    "kinds",
    [
        (faults.REFUSE_503, faults.REFUSE_429),
        (faults.SLOW,),
        (faults.BREAK_BEFORE,),
        (faults.BREAK_AFTER,),
        (faults.BREAK_MIDWAY,),
    ],
    ids=lambda kinds: " ".join(kinds),
)
def test_a_storm_of_faults_delays_checkpoints_and_spoils_none(
    jobs: Jobs, tmp_path: Path, gcs_emulator: str, bucket: str, kinds: tuple[str, ...]
) -> None:
    url, log = f"gs://{bucket}/runs", tmp_path / "log"
    with proxied(gcs_emulator, storm(7, 0.25, *kinds)) as proxy:
        env = {"STORAGE_EMULATOR_HOST": proxy.address}
        assert jobs.run(url, tmp_path, world=2, env=env, wait=True, log=str(log)) == [0, 0], log.read_text()
    assert sum(proxy.counts[kind] for kind in kinds) >= 5
    assert newest(url) == STEPS, log.read_text()


def test_a_refusal_on_one_rank_is_told_on_every_rank_and_later_saves_commit(
    jobs: Jobs, tmp_path: Path, gcs_emulator: str, bucket: str
) -> None:
    def rule(method: str, path: str) -> str:
        hit = method == "POST" and "step-0000000003" in path and "rank-00001" in path
        return faults.REFUSE_403 if hit else faults.PASS

    url, log = f"gs://{bucket}/runs", tmp_path / "log"
    with proxied(gcs_emulator, rule) as proxy:
        env = {"STORAGE_EMULATOR_HOST": proxy.address}
        assert jobs.run(url, tmp_path, world=2, env=env, wait=True, log=str(log)) == [0, 0], log.read_text()
    assert "step 3 failed" in log.read_text()
    for rank in (0, 1):
        assert f"rank {rank} knows: " in log.read_text()
    names = {found.name for found in open_storage(url).list(f"{RUN}/step-0000000003")}
    assert not any(name.endswith("COMMIT.json") for name in names)
    assert newest(url) == STEPS


def test_a_bucket_that_refuses_ends_every_rank_at_the_start(
    jobs: Jobs, tmp_path: Path, gcs_emulator: str, bucket: str
) -> None:
    log = tmp_path / "log"
    with proxied(gcs_emulator, lambda method, path: faults.REFUSE_403) as proxy:
        env = {"STORAGE_EMULATOR_HOST": proxy.address}
        assert jobs.run(f"gs://{bucket}/runs", tmp_path, world=2, env=env, log=str(log)) == [1, 1]
    assert log.read_text().count("cannot be used") >= 2


@pytest.fixture
def small_disk(tmp_path: Path, require: Callable[[object, str], None]) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    require(mounted, "mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_fails_saves_and_not_training_and_leaves_no_half_objects(
    jobs: Jobs, tmp_path: Path, small_disk: Path
) -> None:
    filler, log = small_disk / "filler", tmp_path / "log"
    filler.write_bytes(bytes(4 * 2**20 - 2**17))
    url = small_disk / "url"
    assert jobs.run(url, tmp_path, wait=True, log=str(log)) == [0]
    assert "Full: " in log.read_text()
    assert not list(url.rglob("COMMIT.json")) and not list((url / ".incoming").iterdir())
    filler.unlink()
    assert jobs.run(url, tmp_path) == [0]
    assert newest(url) == STEPS


def test_a_stopped_uploader_does_not_keep_the_trainer_beyond_its_window(jobs: Jobs, tmp_path: Path) -> None:
    url = tmp_path / "url"
    (job,) = jobs.start(url, tmp_path, steps=10**9, every=20, window_s=6.0)
    assert job.pid is not None
    while not list(url.rglob("COMMIT.json")):
        assert job.is_alive()
        time.sleep(0.05)
    (uploader,) = [int(p) for p in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    os.kill(uploader, signal.SIGSTOP)
    try:
        time.sleep(0.5)  # let a save meet the stopped uploader
        began = time.monotonic()
        os.kill(job.pid, signal.SIGTERM)
        assert finish([job]) == [EXIT_PREEMPTED]
        assert time.monotonic() - began < 6.0 + 1.0
    finally:
        os.kill(uploader, signal.SIGKILL)


def unsavable(state: dict[str, Any]) -> None:
    state["extra"] = {"when": {1, 2}}


def missing(state: dict[str, Any]) -> None:
    del state["optimizer"].param_groups[0]["params"][-1]
    state["model"].register_buffer("only_here", state["model"][0].bias.detach().clone())


@pytest.mark.parametrize(("spoil", "message"), [(unsavable, "extra/when"), (missing, "only_here")])
def test_a_state_that_is_wrong_on_one_rank_is_an_error_on_both(
    jobs: Jobs, tmp_path: Path, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    log = tmp_path / "log"
    assert jobs.run(tmp_path / "url", tmp_path, world=2, spoil=spoil, log=str(log)) == [1, 1]
    assert log.read_text().count("InputError") >= 2
    assert log.read_text().count(message) >= 2
    assert not list((tmp_path / "url").rglob("*.json"))
