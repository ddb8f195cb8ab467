"""The worker's client of the predicting process: it survives items that end the process.

Start it in a thread that lives as long as the client: the kernel kills the child when the thread
that started it ends (PDEATHSIG).
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
from holdfast.inference.predictor import pipe_protocol
from holdfast.inference.predictor.pipe_protocol import (
    SMALL_BYTES,
    Link,
    check_inputs,
    normalize_configuration,
    parse_values,
    raise_error,
)
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
    """Runs a predictor in a child process, with one micro-batch sent ahead.

    The child finds its next micro-batch in the pipe when it has answered one.
    """

    def __init__(
        self,
        spec: PredictorSpec,
        *,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.timeout_s = timeout_s
        """The maximum time of the next reply."""
        self.on_overdue: Callable[[int, float], object] = lambda items, seconds: None
        """Called by `predict` after a third of the timeout, with the awaited items and the time."""
        self._spec = spec
        self._stopping = stopping
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self.configuration: Mapping[str, object] = {}
        self.inputs: Sequence[Mapping[str, object]] = ()
        """The tensors that the predictor takes; empty if it does not describe them."""
        self._in_flight: deque[list[bytes]] = deque()
        """Micro-batches that are sent and not answered; the child computes the first one."""
        self._finished: list[tuple[list[bytes], dict[str, Any]]] = []
        """Micro-batches and replies that arrived before their `predict` call."""
        self.seconds = 0.0

    @property
    def pid(self) -> int | None:
        """The process id; None after a death, until the next prediction."""
        return self._process.pid if self._process else None

    @property
    def spec(self) -> PredictorSpec:
        """The predictor that is loaded, with the commit that another process must load too."""
        return self._spec

    def load(self) -> None:
        """Starts the process and waits for its model, which may take minutes.

        Raises PredictorBroken if the process ends, or once `stopping()` returns True.
        """
        self._link = self._start_process()
        self._link.send(pipe_protocol.encode(asdict(self._spec)))
        try:
            reply = self._await_model(self._link)
        except EOFError:
            ending = self._reap()
            raise PredictorBroken(
                f"the predicting process {ending} while it loaded the model"
            ) from None
        raise_error(reply)
        self.configuration = normalize_configuration(reply.get("configuration"))
        self.inputs = check_inputs(reply.get("inputs"))
        # After a restart it must load the same commit, not the newest.
        self._spec = replace(self._spec, pinned=self.configuration)

    def _start_process(self) -> Link:
        worker_end, child_end = socket.socketpair()
        descriptor = child_end.fileno()
        command = [
            sys.executable,
            "-m",
            _CHILD,
            str(descriptor),
            str(os.getpid()),
        ]
        env = dict(os.environ)
        for name in _WITHHELD:
            env.pop(name, None)
        with child_end:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=2,  # our standard output may be the event log
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        return Link(worker_end)

    def _await_model(self, link: Link) -> dict[str, Any]:
        while True:
            try:
                return link.receive(_LOAD_POLL_S)
            except TimeoutError:
                if self._stopping():
                    self.close()
                    raise PredictorBroken("a stop was requested while the model loaded") from None

    def prepare(self, bodies: Sequence[bytes]) -> None:
        """Sends a micro-batch ahead of its `predict` call, unless it is sent already."""
        batch = list(bodies)
        finished = [answered for answered, _ in self._finished]
        if batch in self._in_flight or batch in finished:
            return
        self.load_again()
        assert self._link is not None
        self._link.send(pipe_protocol.encode({}, batch))
        self._in_flight.append(batch)

    def send(self, bodies: Sequence[bytes]) -> Link | None:
        """Sends a micro-batch and returns where its reply arrives, for an event loop to wait there.

        Returns None if only `predict` can do it, since it would block: the process is not loaded,
        or the micro-batch is too large for the pipe.
        """
        if self._link is None or sum(map(len, bodies)) > SMALL_BYTES:
            return None
        self.prepare(bodies)
        return None if self._link.has_unsent else self._link

    def predict(self, bodies: Sequence[bytes], waited_s: float = 0.0) -> list[Value]:
        """Returns a value for each body. Raises PredictorError.

        `waited_s` is the part of the timeout that has passed since `send`.
        """
        batch = list(bodies)
        while True:
            reply = self._pop_finished(batch)
            if reply is not None:
                break
            self.prepare(batch)
            self._await_reply(batch, self.timeout_s - waited_s)
        values, self.seconds = parse_values(reply, len(batch))
        return values

    def forget(self, bodies: Sequence[bytes]) -> None:
        """Drops the reply of a micro-batch that was sent ahead and is no longer needed."""
        with contextlib.suppress(ValueError):
            position = self._in_flight.index(list(bodies))
            self._in_flight[position] = []

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def kill(self) -> None:
        """Kills the process from any thread: a call that waits for its reply then fails."""
        pid = self.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def load_again(self) -> None:
        """Restarts the process if it has died. Raises PredictorBroken if that fails."""
        if self._process is not None:
            return
        try:
            self.load()
        except (InputError, LoaderFailed) as error:
            # The model loaded before, so neither an item nor the user is at fault.
            raise PredictorBroken(f"the model cannot be loaded again: {error}") from error

    def _pop_finished(self, batch: list[bytes]) -> dict[str, Any] | None:
        for position, (answered, reply) in enumerate(self._finished):
            if answered == batch:
                del self._finished[position]
                return reply
        return None

    def _await_reply(self, batch: list[bytes], timeout_s: float) -> None:
        """Awaits the reply to the micro-batch that the child computes now.

        Raises ProcessDied or TimedOut if `batch` ended the child. If another micro-batch did, the
        caller sends `batch` again.
        """
        assert self._link is not None
        try:
            reply = self._receive(self._link, timeout_s)
        except (EOFError, TimeoutError) as error:
            is_guilty = self._in_flight[0] == batch
            is_late = isinstance(error, TimeoutError)
            message = f"the predicting process {self._reap(late=is_late)}"
            if not is_guilty:
                return
            if is_late:
                raise TimedOut(message) from None
            raise ProcessDied(message) from None
        except (ValueError, RecursionError) as error:
            fault = [type(error).__name__, "a reply is not valid"]
            self._finished.append((self._in_flight.popleft(), {"fault": fault}))
            return
        answered = self._in_flight.popleft()
        if answered:  # it is empty if it was forgotten
            self._finished.append((answered, reply))

    def _receive(self, link: Link, timeout_s: float) -> dict[str, Any]:
        overdue_s = timeout_s / 3
        try:
            return link.receive(overdue_s)
        except TimeoutError:
            self.on_overdue(len(self._in_flight[0]), overdue_s)
            return link.receive(timeout_s - overdue_s)

    def _reap(self, *, late: bool = False) -> str:
        """Ends the process, forgets all that was sent to it, and describes how it ended."""
        assert self._process is not None
        assert self._link is not None
        self._link.close()
        self._in_flight.clear()
        if late:
            self._process.kill()
        try:
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:  # it closed the pipe or sent garbage, and still runs
            self._process.kill()
            code = self._process.wait()
        self._process = None
        self._link = None
        if late:
            return f"did not answer in {self.timeout_s:g} s"
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"exited with {code}"
