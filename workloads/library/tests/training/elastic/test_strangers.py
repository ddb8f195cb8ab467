"""A process with a way to a gang's ports and without the key of its run: it learns nothing and changes nothing."""

import contextlib
import json
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from holdfast.contract.environment import ENV_KEY_FILE
from workloads.library.tests.training.elastic.conftest import Make

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


class Stranger:
    """Reads what the stores give away, uses it as the secret of questions, and writes garbage wherever it can."""

    def __init__(self, nodes: Sequence[tuple[str, int]]) -> None:
        self._nodes, self._ended = nodes, threading.Event()
        self.close = self._ended.set
        self.found: list[str] = []
        """Keys of stores."""
        self.answers: list[int] = []
        for work in (self._read, self._ask, self._noise):
            threading.Thread(target=self._work, args=(work,), daemon=True).start()

    def _work(self, work: Callable[[str, int], None]) -> None:
        while not self._ended.wait(0.2):
            for host, port in self._nodes:
                with contextlib.suppress(OSError, RuntimeError, ValueError, HTTPException):
                    work(host, port)

    def _read(self, host: str, port: int) -> None:
        store = TCPStore(host, port + 1, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
        self.found += store.list_keys()
        for found in self.found[-20:]:
            store.set(found, secrets.token_bytes(64))

    def _ask(self, host: str, port: int) -> None:
        secret = secrets.token_hex(32)
        body = {"index": 0, "incarnation": "x", "epoch": 1}
        headers = {"Holdfast-Nonce": secret[:32], "Holdfast-Seal": secret}
        for path in ("/status", "/report", "/join"):
            with contextlib.closing(HTTPConnection(host, port, timeout=1)) as connection:
                connection.request("POST", path, json.dumps(body), headers)
                self.answers.append(connection.getresponse().status)

    def _noise(self, host: str, port: int) -> None:
        for above in (0, 1):
            with socket.create_connection((host, port + above), timeout=1) as connection:
                connection.sendall(secrets.token_bytes(4096))


def test_a_stranger_on_every_port_changes_no_bit_and_ends_no_gang(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(secrets.token_hex(32))
    monkeypatch.setenv(ENV_KEY_FILE, str(tmp_path / "key"))
    digest = make("alone", nodes=1).digest_of_one_node()
    gang = make(nodes=2, gate_step=25)
    with contextlib.closing(Stranger(gang.addresses)) as visitor:
        gang.start(0, 1)
        gang.until(gang.committed)
        gang.signal(1, signal.SIGKILL)
        gang.until(lambda: 1 in gang.sizes())
        gang.start(1)
        gang.until(lambda: gang.waiting(1))
        gang.open_gate()
        gang.ends_with(digest)
    assert not visitor.found, "what a store holds is no stranger's business"
    assert visitor.answers and 200 not in visitor.answers
