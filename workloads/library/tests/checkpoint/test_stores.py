"""Trainers whose checkpoints are in each kind of store, killed there, and a second store to read from."""

import random
import socket
import threading
from pathlib import Path

import pytest

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import NotFound, StorageError, Transient
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.ranks import Ranks, on_every_rank
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.opening import Mirrored, reliable_storage
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.contract.errors import Later
from holdfast.contract.exit_codes import EXIT_RETRY
from holdfast.runtime.stop import OneProcessStore
from workloads.library.tests.checkpoint.jobs import RUN


def test_a_store_that_is_down_at_the_start_is_worth_another_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nowhere = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", nowhere)
    tuning = Tuning(retry_s=0.2, request_s=1.0)
    drawn, threads = random.getstate(), set(threading.enumerate())
    with pytest.raises(Later) as down:
        on_every_rank(
            Ranks(OneProcessStore(), 0, 1),
            lambda: committed_steps(reliable_storage("gs://bucket/runs", tuning, create=True), RUN),
        )
    assert down.value.code == EXIT_RETRY
    assert not set(threading.enumerate()) - threads, "a client's own thread goes on trying"
    assert random.getstate() == drawn, "Python's own stream belongs to the training"


class Away(LocalStorage):
    """A region that does not answer."""

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        raise Transient("no route to the first")

    def list(self, prefix: str) -> None:  # type: ignore[override]
        raise Transient("no route to the first")

    stat = list  # type: ignore[assignment]


def test_a_store_that_is_away_is_read_from_its_mirror_and_never_written_there(tmp_path: Path) -> None:
    second = LocalStorage.open(str(tmp_path / "second"))
    data = memoryview(bytearray(b"bytes"))
    second.put("run/x", data, crc32c(data))
    both = Mirrored(Away.open(str(tmp_path / "first")), second)
    into = bytearray(5)
    both.read_into("run/x", 0, memoryview(into))
    assert (into, both.stat("run/x").bytes, [s.name for s in both.list("run")]) == (b"bytes", 5, ["run/x"])
    both.put("run/y", data, crc32c(data))
    with pytest.raises(NotFound):
        second.stat("run/y")
    with pytest.raises(StorageError, match="no route to the first"):
        both.read_into("run/y", 0, memoryview(into))
