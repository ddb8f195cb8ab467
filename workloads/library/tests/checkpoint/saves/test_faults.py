"""A store that misbehaves: nothing committed is lost, training goes on, and every rank knows."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.stores.factory import Retrying, open_storage
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.vocabulary.exit_codes import EXIT_RETRY
from workloads.library.tests.checkpoint.jobs import RUN, STEPS, TUNING, Jobs, list_committed, newest
from workloads.library.tests.checkpoint.saves import faulty_proxy as faults
from workloads.library.tests.checkpoint.saves.faulty_proxy import FaultyProxy, storm
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process


def test_frequent_faults_delay_checkpoints_and_damage_none(
    jobs: Jobs,
    tmp_path: Path,
    proxy: FaultyProxy,
    bucket: str,
) -> None:
    url = f"gs://{bucket}/runs"
    log = tmp_path / "log"
    kinds = (
        faults.REFUSE_503,
        faults.REFUSE_429,
        faults.BREAK_BEFORE,
        faults.BREAK_AFTER,
        faults.BREAK_MIDWAY,
    )
    proxy.rule = storm(7, 0.3, *kinds)
    for steps in (STEPS // 2, STEPS):  # the second start restores in the storm
        codes = jobs.run(
            url,
            tmp_path,
            world=2,
            env=proxy.env,
            wait=True,
            steps=steps,
            # Several tries in a row may fail, and each is slow on a busy machine.
            tuning=replace(TUNING, retry_s=50),
            log=str(log),
        )
        assert codes == [0, 0], log.read_text()
    for kind in kinds:
        assert proxy.counts[kind], proxy.counts
    assert newest(url) == STEPS, log.read_text()


def test_silent_connections_are_dropped_and_their_requests_retried(
    jobs: Jobs,
    tmp_path: Path,
    proxy: FaultyProxy,
    bucket: str,
) -> None:
    """The first request of every kind is silent: upload, list, stat, download, delete, move."""
    kinds: set[tuple[str, ...]] = set()
    lock = threading.Lock()

    def rule(method: str, path: str) -> str:
        address = urlsplit(path).path
        kind = (method, address.split("/")[1], str(address.endswith("/o")))
        with lock:
            is_first = kind not in kinds
            kinds.add(kind)
        return faults.SILENT if is_first else faults.PASS

    url = f"gs://{bucket}/runs"
    log = tmp_path / "log"
    proxy.rule = rule
    options: dict[str, Any] = {
        "tuning": replace(TUNING, request_s=1.0, retry_s=60.0),
        "keep": 1,
        "log": str(log),
    }
    for steps in (3, 6):
        assert jobs.run(
            url,
            tmp_path,
            world=2,
            env=proxy.env,
            steps=steps,
            **options,
        ) == [0, 0], log.read_text()
    until(lambda: proxy.counts[faults.SILENT] == len(kinds) == 6)
    assert "failed" not in log.read_text()
    assert "restored step 3" in log.read_text()
    assert newest(url) == 6


def test_a_slow_upload_is_not_taken_for_a_silent_one(
    proxy: FaultyProxy,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole takes some 5 s; a time-out of 2 s applies to its parts."""
    data = memoryview(bytearray(os.urandom(10 << 20)))
    proxy.rule = lambda method, path: faults.SLOW_INTAKE if method == "POST" else faults.PASS
    monkeypatch.setenv(*proxy.env.popitem())
    Retrying(open_storage(f"gs://{bucket}/runs", request_s=2.0), budget_s=60).put(
        "slow", data, crc32c(data)
    )
    assert proxy.taken == len(data)


def test_a_store_that_corrupts_data_is_noticed_before_retention(
    jobs: Jobs,
    tmp_path: Path,
    proxy: FaultyProxy,
    bucket: str,
) -> None:
    url = f"gs://{bucket}/runs"
    log = tmp_path / "log"

    def rule(method: str, path: str) -> str:
        spoils = method == "GET" and ".bin" in path and "step-0000000003" not in path
        return faults.SPOILED if spoils else faults.PASS

    proxy.rule = rule
    for steps, code in ((3, 0), (9, EXIT_RETRY)):
        options: dict[str, Any] = {
            "steps": steps,
            "keep": 1,
            "wait": True,
            "log": str(log),
        }
        assert jobs.run(
            url,
            tmp_path,
            env=proxy.env,
            **options,
        ) == [code], log.read_text()
    assert "returns other bytes than it was sent" in log.read_text()
    assert list_committed(url) == [3], "retention would have replaced it, at step 6 or 9"


@pytest.fixture
def small_disk(tmp_path: Path, require: Callable[[object, str], None]) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=4m",
        "tmpfs",
        str(folder),
    ]
    possible = os.geteuid() == 0 and shutil.which("mount")
    mounted = possible and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    require(mounted, "mounting a small tmpfs needs root and mount (util-linux)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_recovers_once_there_is_room_for_one_save(
    tmp_path: Path, small_disk: Path
) -> None:
    """The shards of failed saves and of a killed start must not keep their room."""
    state = {"w": torch.ones(3 * 2**18)}  # 3 of 4 MiB, in three shards
    tuning = replace(TUNING, shard_bytes=2**20)
    filler = small_disk / "filler"
    url = small_disk / "url"
    orphan = url / RUN / "step-0000000001" / f"{1:012x}" / "rank-00000-00000.bin"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(bytes(2**18))  # of a trainer that was killed in its save
    filler.write_bytes(bytes(2**20 + 2**19))
    with Checkpointer(
        str(url),
        state,
        run=RUN,
        every=10**9,
        tuning=tuning,
    ) as ckpt:
        for step in (2, 3):
            ckpt.save(step)
            assert not ckpt.wait()
        assert "Full" in ckpt.failure
        assert not list((url / ".incoming").iterdir())
        filler.unlink()
        ckpt.save(4)
        assert ckpt.wait(), ckpt.failure
        ckpt.step = 4
    assert not orphan.exists()
    assert load_tensors(str(url), RUN)[0] == 4
