"""A store that spoils what it takes is found by the first save, and costs no checkpoint that was sound."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.save.orders import UploadOrders
from holdfast.checkpoint.save.uploader_process import Mailbox, Memory, serve
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


class Trainer:
    def __init__(self, storage: LocalStorage) -> None:
        self.socket, self._theirs = socket.socketpair()
        self._memory = os.memfd_create("staging")
        orders = UploadOrders(url="", run="r", tuning=Tuning(), keep=1, commit_count=0, epoch=0)
        arguments = (Mailbox(self._theirs), [Memory(self._memory)], storage, orders)
        self._serving = threading.Thread(target=serve, args=arguments)
        self._serving.start()
        self._lines = self.socket.makefile("r")

    def save(self, step: int) -> dict[str, Any]:
        """How it ended."""
        one, stream = job({"w": torch.full((50_000,), float(step))}, step)
        os.pwrite(self._memory, stream, 0)
        self.socket.sendall(one.encode() + b"\n")
        while (report := json.loads(self._lines.readline()))["done"] == "uploaded":
            pass
        return report

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self._serving.join(30)
        for end in (self._lines, self.socket, self._theirs):
            end.close()
        os.close(self._memory)


@pytest.fixture
def store(tmp_path: Path) -> Spoiling:
    return Spoiling.open(str(tmp_path))


def trainer(store: Spoiling) -> Iterator[Trainer]:
    made = Trainer(store)
    yield made
    made.close()


first = second = pytest.fixture(trainer)


def test_a_store_that_spoils_every_write_commits_nothing_and_loses_nothing(
    store: Spoiling, first: Trainer, second: Trainer
) -> None:
    assert first.save(1)["done"] == "committed"
    store.spoils = True
    for step in (2, 3):
        report = second.save(step)
        assert report["done"] == "failed"
        assert "gives back other bytes than it was sent" in report["reason"]
    assert committed_steps(store, "r") == [1], "retention would have replaced it"
    store.spoils = False
    assert second.save(4)["done"] == "committed"


def test_only_the_first_save_of_a_start_is_read_back(store: Spoiling, first: Trainer) -> None:
    for step in (1, 2, 3):
        assert first.save(step)["done"] == "committed"
    assert store.reads == 1
