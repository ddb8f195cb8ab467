"""The trainer's side of the uploader process: sends orders and jobs, receives reports, and never
blocks on storage.
"""

import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from holdfast.checkpoint.format import Manifest, Shard, TensorPart, shallow_asdict
from holdfast.checkpoint.peers.keeper_client import Version
from holdfast.checkpoint.save.retention import Policy
from holdfast.checkpoint.settings import Tuning

ROOT = Path(__file__).parents[3]
# Not `python -m`: that puts the current folder first, and a queue.py there would be imported
# instead of the standard library's. The first import binds the package to the copy that the
# trainer runs, whatever else is installed.
START = """
import gc, sys
gc.disable()
sys.path.insert(0, sys.argv.pop(1))
import holdfast
del sys.path[0]
from holdfast.checkpoint.save.uploader_process import main
gc.freeze()
gc.enable()
main()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadOrders:
    """Settings that an uploader is started with, as its one argument."""

    url: str
    run: str
    tuning: Tuning
    keep: int
    commit_count: int
    """Number of commits that this run has."""
    epoch: int
    """Number of this start."""
    damaged: tuple[str, ...] = ()
    """Attempts with a commit that restore skipped."""
    stale: tuple[str, ...] = ()
    """Attempts that can get no commit any more."""
    training_threads: int = 1
    """Threads with which all ranks of this machine compute."""

    def encode(self) -> str:
        return json.dumps(self, default=shallow_asdict)

    @classmethod
    def decode(cls, text: str) -> "UploadOrders":
        body = json.loads(text)
        body["tuning"] = Tuning(**body["tuning"])
        return cls(**body)

    @property
    def policy(self) -> Policy:
        return Policy(
            keep=self.keep,
            keep_every=self.tuning.keep_every,
            damaged=frozenset(self.damaged),
            stale=frozenset(self.stale),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One save of one rank: the first `length` bytes of a staging memory hold its stream, without
    the beginning that `shared` names.
    """

    save: int
    memory: int = 0
    """Number of the staging memory."""
    length: int
    shard_bytes: int
    manifest: Manifest
    """The manifest without shards, whose checksums the uploader computes."""
    frozen_bytes: int = 0
    """Length of the beginning of the memory that holds parameters that are not trained."""
    shared: tuple[Shard, ...] = ()
    """Shards of the beginning of the stream that the store has, and that were not staged."""
    upload: bool = True
    copy: bool = False
    """True if a neighbor gets a copy."""
    keep: Version = (-1, "")
    """Version of which the neighbor has to keep its copy meanwhile."""

    def encode(self) -> bytes:
        return json.dumps(
            self,
            default=shallow_asdict,
            separators=(",", ":"),
            allow_nan=False,
        ).encode()

    @classmethod
    def decode(cls, body: dict[str, Any]) -> "Job":
        # Not parse_manifest: this one comes from the trainer itself, and its many parts are not
        # worth a second check.
        fields: dict[str, Any] = body["manifest"]
        tensors: list[TensorPart] = []
        for part in fields.pop("tensors"):
            boxes = {name: tuple(part[name]) for name in ("shape", "offset", "extent")}
            tensors.append(TensorPart(**(part | boxes)))
        del fields["shards"]
        body |= {
            "manifest": Manifest(**fields, tensors=tuple(tensors), shards=()),
            "keep": tuple(body["keep"]),
            "shared": tuple(Shard(**shard) for shard in body["shared"]),
        }
        return cls(**body)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The outcome of one stage of a save.

    `done`: staged, uploaded, committed, sound, failed or fenced; of a copy copied or uncopied.
    """

    save: int
    done: str
    step: int = 0
    seconds: float = 0.0
    """Time since its staging began; if `staged`, how long training was held."""
    bytes: int = 0
    written_bytes: int = 0
    """Bytes of this rank that went to the store; only if `uploaded` or `committed`."""
    once_bytes: int = 0
    """Those among them that later saves name and do not write again."""
    shared: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Fields of the shards that later saves may name; only if `uploaded`."""
    processor_s: float = 0.0
    """CPU time that sending and receiving take on this node; only if `copied`."""
    reason: str = ""

    def event(self) -> tuple[str, dict[str, object]] | None:
        """Returns name and fields of its line in the event log."""
        if self.done == "committed":
            return "commit", {
                "step": self.step,
                "seconds": round(self.seconds, 3),
                "bytes": self.bytes,
            }
        if self.done == "staged":
            return "save", {
                "step": self.step,
                "blocking_seconds": round(self.seconds, 6),
                "bytes": self.bytes,
            }
        if self.done in ("failed", "fenced"):
            return "save_failed", {"step": self.step, "reason": self.reason}
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class InFlight:
    """A save that was handed over and has not finished. It holds its staging memory until then."""

    step: int
    memory: int
    started_at: float


class Uploader:
    """Handle of an uploader process, which it restarts for the next save if it was killed."""

    def __init__(
        self,
        orders: UploadOrders,
        memories: list[int],
        *,
        coordinator: bool,
    ) -> None:
        """`memories`: descriptors of the staging memories."""
        self._orders = orders
        self._memories = memories
        self._coordinator = coordinator
        self._commit_count = orders.commit_count
        self._in_flight: dict[int, InFlight] = {}
        self._copying: dict[int, InFlight] = {}
        """Saves of which a copy is on its way to a neighbor."""
        self._reports: list[Report] = []
        self._sending = threading.Lock()
        self._is_left_to_launcher = False
        self._start()
        _uploaders.add(self)

    def _start(self) -> None:
        self._buffer = b""
        # A socket and not a pipe: each side sees at once that the other has ended, whatever killed
        # it.
        self.connection, child_end = socket.socketpair()
        self._arrivals = select.poll()
        self._arrivals.register(self.connection, select.POLLIN)
        orders = replace(self._orders, commit_count=self._commit_count).encode()
        descriptors = (child_end.fileno(), *self._memories)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                START,
                str(ROOT),
                orders,
                *map(str, descriptors),
            ],
            # torchrun and kubelets signal process groups: the save in flight must not get those
            # signals.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
        )
        child_end.close()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Numbers of saves: on the coordinator until their commit, elsewhere until their upload."""
        return tuple(self._in_flight)

    @property
    def copying(self) -> bool:
        """True while a copy is on its way to a neighbor."""
        return bool(self._copying)

    def free_memory(self, reserved: int = -1) -> int:
        """Returns the number of a staging memory that the next save may take, except `reserved`;
        -1: each is in use.
        """
        taken = {reserved}
        for saves in (self._in_flight, self._copying):
            for save in saves.values():
                taken.add(save.memory)
        for memory in range(len(self._memories)):
            if memory not in taken:
                return memory
        return -1

    @property
    def oldest_s(self) -> float:
        """Age of the oldest save in flight; -inf if there is none."""
        start_times = [save.started_at for save in self._in_flight.values()]
        return time.monotonic() - min(start_times, default=math.inf)

    def describe_backlog(self) -> str:
        steps = [save.step for save in self._in_flight.values()]
        step = min(steps, default=0)
        return f"the upload of step {step} has not finished after {self.oldest_s:.0f} s"

    def submit(
        self,
        job: Job,
        started_at: float,
        *,
        after: Callable[[], object] | None = None,
    ) -> None:
        """Hands a save over, which is in flight from now on.

        `started_at`: time at which its staging started. `after`: call it first, in a thread.
        """
        assert job.save not in self._in_flight
        if self._process.poll() is not None:  # killed since: a new one has the same memory
            while self._in_flight or self._copying:
                self._receive()
            self.connection.close()
            self._start()
        save = InFlight(
            step=job.manifest.step,
            memory=job.memory,
            started_at=started_at,
        )
        if job.upload:
            self._in_flight[job.save] = save
        if job.copy:
            self._copying[job.save] = save
        if after is None:
            self._send(job.encode())
        else:
            threading.Thread(
                target=self._hand_over,
                args=(job, after),
                name="hand-over",
                daemon=True,
            ).start()

    def _hand_over(self, job: Job, after: Callable[[], object]) -> None:
        after()
        # If the job is not pending any more, its uploader has died, and the memory may already hold
        # the next save.
        is_pending = job.save in self._in_flight or job.save in self._copying
        if is_pending:
            self._send(job.encode())

    def _send(self, line: bytes) -> None:
        with self._sending, suppress(OSError):  # a dead uploader is noticed by the next poll
            self.connection.sendall(line + b"\n")

    def replace(self) -> None:
        """Kills an uploader that is stuck beyond every timeout; the next save starts another."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """Kills the uploader of a rank that is exiting. The launcher waits for the uploader's end.

        Unmapping many gigabytes of memory takes long, and the rank has to unmap its own meanwhile.
        """
        self._process.kill()
        self._is_left_to_launcher = True

    def abandon(self, save: int) -> None:
        """Tells the uploader not to wait for the shards of another rank, which failed."""
        self._send(json.dumps({"abandon": save}).encode())

    def poll(self, wait_s: float = 0.0) -> list[Report]:
        """Returns the reports that have come since the last call."""
        if self._arrivals.poll(1000 * wait_s):
            self._receive()
        reports = self._reports
        self._reports = []
        return reports

    def finish(
        self, timeout_s: float, *, give_up: Callable[[], bool] = lambda: False
    ) -> list[Report]:
        """Waits until no save is in flight, the time is over or `give_up` returns true, which is
        called some 20 times a second. Returns the reports.
        """
        deadline = time.monotonic() + timeout_s
        reports = self.poll()
        while self._in_flight:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or give_up():
                break
            reports += self.poll(min(0.05, remaining_s))
        return reports

    def close(self) -> None:
        """Detaches the uploader, which finishes what is in flight and ends by itself."""
        self.connection.close()
        is_idle = not self._in_flight and not self._is_left_to_launcher
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0 if is_idle else 0.0)
        # A child that outlives its parent is the point; without this the interpreter warns about
        # it.
        self._process.returncode = self._process.returncode or 0

    def _receive(self) -> None:
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._report_death()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._record(json.loads(line))

    def _record(self, fields: dict[str, Any]) -> None:
        report = Report(**fields)
        if report.done in ("copied", "uncopied"):
            self._reports.append(report)
            self._copying.pop(report.save, None)
            return
        save = self._in_flight.get(report.save)
        if save:
            # Measured from the start of staging, not of the upload: the work of this save was at
            # risk for that long.
            seconds = time.monotonic() - save.started_at
            report = replace(report, step=save.step, seconds=seconds)
        self._reports.append(report)
        # An uploader that is started later continues the count; a lower one would look like deleted
        # commits.
        self._commit_count += report.done == "committed"
        last_stage = "committed" if self._coordinator else "uploaded"
        if report.done in ("failed", "fenced", last_stage):
            self._in_flight.pop(report.save, None)

    def _report_death(self) -> None:
        # Its socket closes a moment before it can be waited for; a save handed over then would be
        # lost.
        self.replace()
        self._fail(self._in_flight, "failed")
        self._fail(self._copying, "uncopied")

    def _fail(self, saves: dict[int, InFlight], done: str) -> None:
        for number, save in saves.items():
            report = Report(
                save=number,
                done=done,
                step=save.step,
                reason="the uploader process has died",
            )
            self._reports.append(report)
        saves.clear()


_uploaders: WeakSet[Uploader] = WeakSet()


def _disown() -> None:
    """Closes the uploaders' sockets in a forked child of the trainer."""
    # A worker of a loader may outlive a killed trainer. With a copy of this end of the socket it
    # would keep the uploader waiting for a dead trainer.
    for uploader in _uploaders:
        uploader.connection.close()


os.register_at_fork(after_in_child=_disown)
