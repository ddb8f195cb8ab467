"""The worker's side of the predicting process: a Predictor that outlives what its items do.

Start it from the main thread only: the kernel kills the child when the thread that made it ends
(PDEATHSIG).
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from holdfast.inference.errors import LoaderFailed, PredictorBroken, ProcessDied, TimedOut
from holdfast.inference.predictor import frames
from holdfast.inference.predictor.frames import Link, configuration_of, raise_error, values_of
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_DATABASE

_LOAD_POLL_S = 0.1
_EXIT_S = 10.0
_CHILD = "holdfast.inference.predictor.process"
# A model's code is not ours: it gets no credentials of the database.
_WITHHELD = (ENV_DATABASE, "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "PGSERVICE")


class ProcessPredictor:
    """Pipelined: the child finds its next micro-batch waiting when it has answered one."""

    def __init__(
        self, spec: PredictorSpec, *, timeout_s: float, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.timeout_s = timeout_s
        """Of the next answer."""
        self.on_overdue: Callable[[int, float], object] = lambda items, seconds: None
        """Called by `predict` when a third of that is over, with what is awaited."""
        self._spec = spec
        self._stopping = stopping
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self.configuration: Mapping[str, object] = {}
        self._in_flight: deque[list[bytes]] = deque()
        """Sent and not answered; the child is at the first. Empty: no answer is awaited."""
        self._finished: list[tuple[list[bytes], dict[str, Any]]] = []
        """Answers that arrived before their `predict` call."""
        self.seconds = 0.0

    @property
    def pid(self) -> int | None:
        """None between a death and the next prediction."""
        return self._process.pid if self._process else None

    def load(self) -> None:
        """Start the process and wait for its model; it may take minutes, and ends as broken once
        `stopping()`.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-m",
                _CHILD,
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(
                command,
                env={name: value for name, value in os.environ.items() if name not in _WITHHELD},
                stdin=subprocess.DEVNULL,
                stdout=2,  # our standard output may be the event log
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._link = Link(ours)
        self._link.send(frames.encoded(asdict(self._spec)))
        try:
            reply = self._first_reply(self._link)
        except EOFError:
            raise PredictorBroken(
                f"the predicting process {self._reap()} while it loaded the model"
            ) from None
        raise_error(reply)
        self.configuration = configuration_of(reply.get("configuration"))
        # Started again, it must load the commit that it began with, not the newest.
        self._spec = replace(self._spec, pinned=self.configuration)

    def _first_reply(self, link: Link) -> dict[str, Any]:
        while True:
            try:
                return link.receive(_LOAD_POLL_S)
            except TimeoutError:
                if self._stopping():
                    self.close()
                    raise PredictorBroken("a stop was requested while the model loaded") from None

    def prepare(self, bodies: Sequence[bytes]) -> None:
        wanted = list(bodies)
        if wanted in self._in_flight or any(wanted == early for early, _ in self._finished):
            return
        self.load_again()
        assert self._link is not None
        self._link.send(frames.encoded({}, wanted))
        self._in_flight.append(wanted)

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        wanted = list(bodies)
        while (reply := self._take_finished(wanted)) is None:
            self.prepare(wanted)
            self._await_answer(wanted)
        values, self.seconds = values_of(reply, len(wanted))
        return values

    def forget(self, bodies: Sequence[bytes]) -> None:
        """What was handed over ahead, and no call will ask for."""
        with contextlib.suppress(ValueError):
            self._in_flight[self._in_flight.index(list(bodies))] = []

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def load_again(self) -> None:
        """After a death; else nothing. PredictorBroken when that fails."""
        if self._process is not None:
            return
        try:
            self.load()
        except (InputError, LoaderFailed) as error:
            # It did load before: not an item's fault, and not the user's.
            raise PredictorBroken(f"the model cannot be loaded again: {error}") from error

    def _take_finished(self, wanted: list[bytes]) -> dict[str, Any] | None:
        found = next((n for n, (bodies, _) in enumerate(self._finished) if bodies == wanted), None)
        return None if found is None else self._finished.pop(found)[1]

    def _await_answer(self, wanted: list[bytes]) -> None:
        """Of what the child computes now. If that ends the child and is not `wanted`, `wanted` is
        sent again.
        """
        assert self._link is not None
        try:
            reply = self._received(self._link)
        except (EOFError, TimeoutError) as error:
            guilty = self._in_flight[0] == wanted
            late = isinstance(error, TimeoutError)
            how = self._reap(late=late)
            if guilty:
                raise (TimedOut if late else ProcessDied)(f"the predicting process {how}") from None
        except (ValueError, RecursionError) as error:
            self._finished.append(
                (
                    self._in_flight.popleft(),
                    {"fault": [type(error).__name__, "an answer cannot be read"]},
                )
            )
        else:
            answered = self._in_flight.popleft()
            if answered:
                self._finished.append((answered, reply))

    def _received(self, link: Link) -> dict[str, Any]:
        try:
            return link.receive(self.timeout_s / 3)
        except TimeoutError:
            self.on_overdue(len(self._in_flight[0]), self.timeout_s / 3)
            return link.receive(self.timeout_s * 2 / 3)

    def _reap(self, *, late: bool = False) -> str:
        """Make sure that it has ended, and forget all that it was sent; returns how it ended."""
        assert self._process is not None
        assert self._link is not None
        self._link.close()
        self._in_flight.clear()
        if late:
            self._process.kill()
        try:
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:  # it closed its end, or sent nonsense, and lives
            self._process.kill()
            code = self._process.wait()
        self._process = self._link = None
        if late:
            return f"did not answer in {self.timeout_s:g} s"
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"exited with {code}"
