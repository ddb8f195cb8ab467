"""The worker's side of the predicting process: a Predictor that outlives what its items do.

Used by `batch run`. Started from the main thread only: the child is told to die with the thread that made it.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from infra.contract.errors import InputError
from workloads.inference import frames
from workloads.inference.connect import ENV_DATABASE
from workloads.inference.predictor_spec import PredictorSpec
from workloads.inference.predictors import ItemFault, LoaderFailed, PredictorBroken, ProcessDied
from workloads.inference.results import Value

_CHILD = "workloads.inference.predictor_process"
# A model's code is not ours: it gets no way into the database.
_WITHHELD = (ENV_DATABASE, "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "PGSERVICE")


class ProcessPredictor:
    def __init__(self, spec: PredictorSpec, *, timeout_s: float) -> None:
        self._spec, self._timeout_s = spec, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._late = False
        self._configuration: Mapping[str, object] = {}

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
        self._link = ours
        said = self._asked(asdict(self._spec), (), None)
        if not said:
            raise PredictorBroken(f"the predicting process {self._end()} while it loaded the model")
        self._configuration = said["configuration"]
        # Started again, it must load the commit that it began with, not the newest.
        self._spec = replace(self._spec, pinned=self._configuration)

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        if self._process is None:
            self._load_again()
        if said := self._asked({}, bodies, self._timeout_s):
            return said["values"]
        raise ProcessDied(f"the predicting process {self._end()}")

    def _load_again(self) -> None:
        try:
            self.load()
        except (InputError, LoaderFailed) as error:
            # It did load before: not an item's fault, and not the user's.
            raise PredictorBroken(f"the model cannot be loaded again: {error}") from error

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()

    def _asked(self, header: Mapping[str, object], bodies: Sequence[bytes], timeout_s: float | None) -> dict[str, Any]:
        """Empty when the process died or did not answer in time."""
        assert self._link is not None
        try:
            frames.send(self._link, header, bodies)
            self._late = not self._readable(timeout_s)
            said = {} if self._late else frames.receive(self._link)[0]
        except (EOFError, ConnectionError):
            return {}
        _raise_what_was_said(said)
        return said

    def _readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._link or -1, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _end(self) -> str:
        """Make sure that it is gone; how it went, in words."""
        assert self._process is not None
        assert self._link is not None
        self._link.close()
        if self._late:
            self._process.kill()
        code = self._process.wait()
        self._process = self._link = None
        if self._late:
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
