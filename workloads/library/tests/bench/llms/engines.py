"""Small engines that are evicted, killed and frozen, and replaced at their ports."""

import itertools
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from workloads.library.tests.inference.router.fleet import engine
from workloads.library.tests.inference.server.serving import Served

KINDS = ("eviction", "kill", "freeze")
FROZEN_S = 45.0
"""The time after which a frozen server is replaced, before it is scaled."""
NOTICE_S = 15.0
HOLD_S = 4.0
"""The part of the notice in which a sidecar holds back the signal (sidecar_budget)."""


class Engines:
    """Engines, and a thread that disrupts one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        count: int,
        tokens_per_s: float,
        factor: float,
    ) -> None:
        self._folder = folder
        self._tokens_per_s = tokens_per_s
        self._factor = factor
        self._count = count
        self._stack = ExitStack()
        self._places: list[tuple[ExitStack, Served]] = []
        self._requests = threading.Semaphore(0)
        self._kinds = itertools.cycle(KINDS)
        self._positions = itertools.cycle(range(count))
        self._is_closed = False
        self.disruptions = 0
        self._thread = threading.Thread(target=self._disrupt, name="disruptions")

    def __enter__(self) -> Self:
        self._places = [self._start(0) for _ in range(self._count)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._requests.release()
        self._thread.join()
        for stack, _ in self._places:
            stack.close()

    @property
    def servers(self) -> list[Served]:
        return [served for _, served in self._places]

    @property
    def ports(self) -> list[int]:
        return [served.port for _, served in self._places]

    def disrupt(self) -> None:
        """Asks for one more disruption, of the next kind at the next engine."""
        self._requests.release()

    def _start(self, port: int) -> tuple[ExitStack, Served]:
        stack = ExitStack()
        timeout_s = (NOTICE_S - HOLD_S) / self._factor
        options = ("--shutdown-timeout", str(timeout_s), "--pair-every", "16", "--prefill", "0.1")
        context = engine(
            self._folder,
            *options,
            port=port,
            tokens_per_s=self._tokens_per_s,
        )
        return stack, stack.enter_context(context)

    def _disrupt(self) -> None:
        while True:
            self._requests.acquire()
            if self._is_closed:
                return
            position = next(self._positions)
            stack, served = self._places[position]
            self._hit(served, next(self._kinds))
            self.disruptions += 1
            with suppress(ProcessLookupError):
                served.signal(signal.SIGKILL)
            served.wait()
            stack.close()
            self._places[position] = self._start(served.port)

    def _hit(self, served: Served, kind: str) -> None:
        if kind == "eviction":
            served.signal(signal.SIGTERM)
            deadline = time.monotonic() + NOTICE_S / self._factor
            while served.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
        elif kind == "freeze":
            served.signal(signal.SIGSTOP)
            time.sleep(FROZEN_S / self._factor)
