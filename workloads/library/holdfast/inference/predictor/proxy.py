"""The worker's side of the predicting process: a Predictor that outlives what its items do.

Used by `batch run`. Started from the main thread only: the child is told to die with the thread that made it.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.inference.predictor import frames
from holdfast.inference.predictor.link import Link
from holdfast.inference.predictor.predictors import ItemFault, LoaderFailed, PredictorBroken, ProcessDied
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.results.connect import ENV_DATABASE
from holdfast.inference.results.results import Value

_CHILD = "holdfast.inference.predictor.process"
# A model's code is not ours: it gets no way into the database.
_WITHHELD = (ENV_DATABASE, "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "PGSERVICE")


class ProcessPredictor:
    """Pipelined: the child finds its next micro-batch waiting when it has answered one."""

    def __init__(self, spec: PredictorSpec, *, timeout_s: float) -> None:
        self._spec, self._timeout_s = spec, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._configuration: Mapping[str, object] = {}
        self._begun: deque[list[bytes]] = deque()
        """Sent and not answered; the child is at the first."""
        self._early: list[tuple[list[bytes], dict[str, Any]]] = []
        """Answered before `predict` asked for it."""
        self.seconds = 0.0

    @property
    def configuration(self) -> Mapping[str, object]:
        return self._configuration

    @property
    def pid(self) -> int | None:
        """None between a death and the next prediction."""
        return self._process.pid if self._process else None

    def load(self) -> None:
        """Start the process and wait for its model; it may take minutes."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", _CHILD, str(theirs.fileno()), str(os.getpid())]
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
            said = self._link.receive(None)
        except EOFError:
            raise PredictorBroken(f"the predicting process {self._end()} while it loaded the model") from None
        _raise_what_was_said(said)
        self._configuration = said["configuration"]
        # Started again, it must load the commit that it began with, not the newest.
        self._spec = replace(self._spec, pinned=self._configuration)

    def prepare(self, bodies: Sequence[bytes]) -> None:
        wanted = list(bodies)
        if wanted in self._begun or any(wanted == early for early, _ in self._early):
            return
        if self._process is None:
            self._load_again()
        assert self._link is not None
        self._link.send(frames.encoded({}, wanted))
        self._begun.append(wanted)

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        wanted = list(bodies)
        while (said := self._answered(wanted)) is None:
            self.prepare(wanted)
            self._await_answer(wanted)
        _raise_what_was_said(said)
        self.seconds = said["seconds"]
        return said["values"]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()

    def _load_again(self) -> None:
        try:
            self.load()
        except (InputError, LoaderFailed) as error:
            # It did load before: not an item's fault, and not the user's.
            raise PredictorBroken(f"the model cannot be loaded again: {error}") from error

    def _answered(self, wanted: list[bytes]) -> dict[str, Any] | None:
        found = next((n for n, (bodies, _) in enumerate(self._early) if bodies == wanted), None)
        return None if found is None else self._early.pop(found)[1]

    def _await_answer(self, wanted: list[bytes]) -> None:
        """Of whatever the child is at. Where that ended the child, and was not `wanted`, somebody else's turn will tell."""
        assert self._link is not None
        try:
            said = self._link.receive(self._timeout_s)
        except (EOFError, TimeoutError) as error:
            guilty = self._begun[0] == wanted
            how = self._end(late=isinstance(error, TimeoutError))
            if guilty:
                raise ProcessDied(f"the predicting process {how}") from None
        except (ValueError, RecursionError) as error:
            self._early.append((self._begun.popleft(), {"fault": [type(error).__name__, "an answer cannot be read"]}))
        else:
            self._early.append((self._begun.popleft(), said))

    def _end(self, *, late: bool = False) -> str:
        """Make sure that it is gone, with all that it was sent; how it went, in words."""
        assert self._process is not None
        assert self._link is not None
        self._link.close()
        self._begun.clear()
        if late:
            self._process.kill()
        code = self._process.wait()
        self._process = self._link = None
        if late:
            return f"did not answer in {self._timeout_s:g} s"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def _raise_what_was_said(said: Mapping[str, Any]) -> None:
    if "input" in said:
        told = said["input"]
        raise InputError(told["what"], got=told["got"], allowed=told["allowed"], fix=told["fix"])
    if "broken" in said:
        raise PredictorBroken(said["broken"])
    if "bug" in said:
        raise LoaderFailed(said["bug"])
    if "fault" in said:
        raise ItemFault(*said["fault"])
