"""A store that spoils what it takes is found by the first save, and costs no checkpoint that was sound."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.save.orders import UploadOrders
from holdfast.checkpoint.save.uploader_process import Mailbox, Memory, Saves
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores import LocalStorage
from workloads.library.tests.checkpoint.made import job

pytestmark = pytest.mark.process


class Spoiling(LocalStorage):
    """Flips a bit of every shard while it is told to."""

    spoils = False
    reads = 0

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        super().put(name, data, crc32c)
        if self.spoils and name.endswith(".bin"):
            path = self._root / name
            stored = bytearray(path.read_bytes())
            stored[len(stored) // 2] ^= 1
            path.chmod(0o600)
            path.write_bytes(stored)

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self.reads += name.endswith(".bin")
        super().read_into(name, start, into)


@contextmanager
def start(storage: LocalStorage) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Of a trainer: saves a step, and returns how that ended."""
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("staging")
    orders = UploadOrders(url="", run="r", tuning=Tuning(), keep=1, commit_count=0, epoch=0)
    serving = threading.Thread(target=Saves(Mailbox(theirs), [Memory(memory)], storage, orders).serve)
    serving.start()

    def save(step: int) -> dict[str, Any]:
        one, stream = job({"w": torch.full((50_000,), float(step))}, step)
        os.pwrite(memory, stream, 0)
        ours.sendall(one.encode() + b"\n")
        while (report := json.loads(lines.readline()))["done"] == "uploaded":
            pass
        return report

    with ours, theirs, ours.makefile("r") as lines:
        yield save
        ours.shutdown(socket.SHUT_RDWR)
        serving.join(30)
    os.close(memory)


def test_a_store_that_spoils_every_write_commits_nothing_and_loses_nothing(tmp_path: Path) -> None:
    store = Spoiling.open(str(tmp_path))
    with start(store) as save:
        for step in (1, 2, 3):
            assert save(step)["done"] == "committed"
    assert store.reads == 1, "the first save of a start is read back"
    store.spoils = True
    with start(store) as save:
        for step in (4, 5):
            report = save(step)
            assert report["done"] == "failed"
            assert "gives back other bytes than it was sent" in report["reason"]
        assert committed_steps(store, "r") == [3], "retention would have replaced it"
        store.spoils = False
        assert save(6)["done"] == "committed"
