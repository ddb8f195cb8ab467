"""The event log: lines of JSON, written atomically by any number of processes.

A line is one write(2) on a descriptor opened with O_APPEND, so lines of several processes never
mix. Losing a line must not stop the work: a failed write is not raised.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from holdfast.runtime.traces import Traces
from holdfast.support.errors import unusable
from holdfast.support.values import finite
from holdfast.vocabulary.environment import ENV_EVENTS
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.telemetry import EVENT_VERSION, EVENTS

STDOUT = 1


class EventLog:
    def __init__(
        self,
        descriptor: int,
        *,
        job: str,
        kind: str,
        process: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens no file. Lines carry the identity of `job`, the run that the process works on."""
        self._descriptor = descriptor
        self._clock = clock
        self._is_torn = False
        self.job = job
        self.kind = kind
        self._identity = JobIdentity.of_run(job).fields()
        self.traces = Traces(self._identity | {"kind": kind})
        self.process = process or _make_process_name()

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        *,
        job: str,
        kind: str,
    ) -> Self:
        """Opens `path` to append; None uses the path of the environment, or standard output.

        Raises InputError if the file cannot be opened.
        """
        target = os.environ.get(ENV_EVENTS, "") if path is None else str(path)
        if not target:
            return cls(STDOUT, job=job, kind=kind)
        try:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(target, flags, 0o644)
        except OSError as error:
            raise unusable(error, target) from error
        return cls(descriptor, job=job, kind=kind)

    def emit(self, event: str, **fields: object) -> None:
        if event not in EVENTS:
            raise ValueError(
                f"event {event!r} is not an event type of holdfast.vocabulary.telemetry"
            )
        common = {
            "v": EVENT_VERSION,
            "t": round(self._clock(), 6),
            "event": event,
            **self._identity,
            "kind": self.kind,
            "process": self.process,
        }
        self.traces.record(event, fields)
        line = json.dumps(
            common | finite(fields),
            allow_nan=False,
        )
        self._write(line.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        # A newline ends the fragment of a torn line (disk full), so that only that line is lost.
        payload = b"\n" + line if self._is_torn else line
        # One attempt: the rest of a line, written later, could land behind another process's line.
        try:
            written_bytes = os.write(self._descriptor, payload)
        except OSError:
            return
        self._is_torn = written_bytes < len(payload)

    def close(self) -> None:
        self.traces.end()
        # Standard output belongs to the process, which may still print.
        if self._descriptor > 2:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_process_name() -> str:
    suffix = secrets.token_hex(3)
    return f"{os.uname().nodename}-{os.getpid()}-{suffix}"
