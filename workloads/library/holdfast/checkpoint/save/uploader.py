"""The trainer's side of the uploader process: its orders and jobs, its reports; it never blocks on
storage.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from holdfast.checkpoint.format import Manifest, TensorPart, fields_of
from holdfast.checkpoint.peers.places import Version
from holdfast.checkpoint.save.retention import Policy
from holdfast.checkpoint.settings import Tuning

ROOT = Path(__file__).parents[3]
# Not `python -m`: that puts the current folder first, and a queue.py there would be imported for
# the library's own. The first import binds the package to the copy that the trainer runs, whatever
# else is installed.
START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import holdfast
del sys.path[0]
from holdfast.checkpoint.save.uploader_process import main
main()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadOrders:
    """What an uploader is started with, as its one argument."""

    url: str
    run: str
    tuning: Tuning
    keep: int
    commit_count: int
    """Commits that this run has."""
    epoch: int
    """Number of this start."""
    damaged: tuple[str, ...] = ()
    """Attempts whose commit restore passed over."""
    stale: tuple[str, ...] = ()
    """Attempts that get no commit any more."""
    training_threads: int = 1
    """That all ranks of this machine compute with."""

    def encode(self) -> str:
        return json.dumps(self, default=fields_of)

    @classmethod
    def decode(cls, text: str) -> "UploadOrders":
        body = json.loads(text)
        return cls(**(body | {"tuning": Tuning(**body["tuning"])}))

    @property
    def policy(self) -> Policy:
        damaged = frozenset(self.damaged)
        stale = frozenset(self.stale)
        return Policy(
            keep=self.keep,
            keep_every=self.tuning.keep_every,
            damaged=damaged,
            stale=stale,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One save of one rank: the first `length` bytes of a staging memory hold its stream."""

    save: int
    memory: int = 0
    """Which of the staging memories."""
    length: int
    shard_bytes: int
    manifest: Manifest
    """Without shards: their checksums are computed by the uploader."""
    upload: bool = True
    copy: bool = False
    """Whether a neighbour gets it."""
    keep: Version = (-1, "")
    """Which copy the neighbour has to keep meanwhile."""

    def encode(self) -> bytes:
        return json.dumps(
            self,
            default=fields_of,
            separators=(",", ":"),
            allow_nan=False,
        ).encode()

    @classmethod
    def decode(cls, body: dict[str, Any]) -> "Job":
        # Not parse_manifest: this one comes from the trainer itself, and its many parts are not
        # worth a second check.
        fields: dict[str, Any] = body["manifest"]
        tensors = tuple(
            TensorPart(
                **(part | {name: tuple(part[name]) for name in ("shape", "offset", "extent")})
            )
            for part in fields.pop("tensors")
        )
        del fields["shards"]
        body |= {
            "manifest": Manifest(**fields, tensors=tensors, shards=()),
            "keep": tuple(body["keep"]),
        }
        return cls(**body)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """`done`: staged, uploaded, committed, sound, failed or fenced; copied or uncopied."""

    save: int
    done: str
    step: int = 0
    seconds: float = 0.0
    """Since its staging began; of `staged` how long training was held."""
    bytes: int = 0
    processor_s: float = 0.0
    """Of `copied`: what this node's share of sending and receiving takes."""
    reason: str = ""

    def event(self) -> tuple[str, dict[str, object]] | None:
        """Its line of the event log: name and fields."""
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
    """A save that was handed over and has not finished, and the staging memory that it holds until
    then.
    """

    step: int
    memory: int
    began: float


class Uploader:
    def __init__(self, orders: UploadOrders, memories: list[int], *, coordinator: bool) -> None:
        """`memories`: descriptors of the staging memories."""
        self._orders = orders
        self._memories = memories
        self._coordinator = coordinator
        self._commit_count = orders.commit_count
        self._in_flight: dict[int, InFlight] = {}
        self._copying: dict[int, InFlight] = {}
        self._reports: list[Report] = []
        self._sending = threading.Lock()
        self._start()
        _uploaders.add(self)

    def _start(self) -> None:
        self._buffer = b""
        # A socket and not a pipe: each side sees at once that the other is gone, whatever killed
        # it.
        self.connection, theirs = socket.socketpair()
        self._arrivals = select.poll()
        self._arrivals.register(self.connection, select.POLLIN)
        orders = replace(self._orders, commit_count=self._commit_count).encode()
        descriptors = (theirs.fileno(), *self._memories)
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
        theirs.close()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Saves: on the coordinator until their commit, elsewhere until their upload."""
        return tuple(self._in_flight)

    @property
    def copying(self) -> bool:
        """Whether a copy is on its way to a neighbour."""
        return bool(self._copying)

    def free_memory(self, kept: int = -1) -> int:
        """Which staging memory the next save may take, but `kept`; -1: every one is still being
        uploaded.
        """
        taken = {
            kept,
            *(one.memory for one in (*self._in_flight.values(), *self._copying.values())),
        }
        return next((memory for memory in range(len(self._memories)) if memory not in taken), -1)

    @property
    def oldest_s(self) -> float:
        """How long the oldest save in flight has taken so far."""
        return time.monotonic() - min(
            (one.began for one in self._in_flight.values()), default=math.inf
        )

    def why_full(self) -> str:
        step = min((one.step for one in self._in_flight.values()), default=0)
        return f"the upload of step {step} has not finished after {self.oldest_s:.0f} s"

    def submit(self, job: Job, began: float, *, after: Callable[[], object] | None = None) -> None:
        """`began`: when its staging did. `after`: wait for it first, in a thread; the save is in
        flight from now on.
        """
        assert job.save not in self._in_flight
        if self._process.poll() is not None:  # killed since: a new one has the same memory
            while self._in_flight or self._copying:
                self._receive()
            self.connection.close()
            self._start()
        one = InFlight(
            step=job.manifest.step,
            memory=job.memory,
            began=began,
        )
        if job.upload:
            self._in_flight[job.save] = one
        if job.copy:
            self._copying[job.save] = one
        if after is None:
            self._order(job.encode())
        else:
            threading.Thread(
                target=self._hand_over,
                args=(job, after),
                name="hand-over",
                daemon=True,
            ).start()

    def _hand_over(self, job: Job, after: Callable[[], object]) -> None:
        after()
        # Else its uploader is gone, and the memory may hold the next save.
        if job.save in self._in_flight or job.save in self._copying:
            self._order(job.encode())

    def _order(self, line: bytes) -> None:
        with self._sending, suppress(OSError):  # a dead uploader is noticed by the next poll
            self.connection.sendall(line + b"\n")

    def replace(self) -> None:
        """An uploader that is stuck beyond every timeout: end it; the next save starts another."""
        self._process.kill()
        self._process.wait()

    def abandon(self, save: int) -> None:
        """Another rank failed: do not wait for its shards."""
        self._order(json.dumps({"abandon": save}).encode())

    def poll(self, wait_s: float = 0.0) -> list[Report]:
        """Reports that have come since the last call."""
        if self._arrivals.poll(1000 * wait_s):
            self._receive()
        reports = self._reports
        self._reports = []
        return reports

    def finish(
        self, timeout_s: float, *, give_up: Callable[[], bool] = lambda: False
    ) -> list[Report]:
        """Until none is in flight, the time is over or `give_up` says so (called some 20 times a
        second).
        """
        deadline = time.monotonic() + timeout_s
        reports = self.poll()
        while self._in_flight and (left := deadline - time.monotonic()) > 0 and not give_up():
            reports += self.poll(min(0.05, left))
        return reports

    def close(self) -> None:
        """Let it go: it finishes what is in flight and ends by itself."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0 if not self._in_flight else 0.0)
        # A child that outlives its parent is the point; without this the interpreter warns about
        # it.
        self._process.returncode = self._process.returncode or 0

    def _receive(self) -> None:
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, fields: dict[str, Any]) -> None:
        report = Report(**fields)
        if report.done in ("copied", "uncopied"):
            self._reports.append(report)
            self._copying.pop(report.save, None)
            return
        one = self._in_flight.get(report.save)
        if one:
            # From the staging on, and not from the upload alone: that long the work of this save
            # was at risk.
            report = replace(report, step=one.step, seconds=time.monotonic() - one.began)
        self._reports.append(report)
        # An uploader that is started later goes on with the count; a lower one would look like
        # deleted commits.
        self._commit_count += report.done == "committed"
        if report.done in ("failed", "fenced", "committed" if self._coordinator else "uploaded"):
            self._in_flight.pop(report.save, None)

    def _died(self) -> None:
        # its socket closes a moment before it can be waited for; a save handed over then would be
        # lost
        self.replace()
        for done, of in (("failed", self._in_flight), ("uncopied", self._copying)):
            for save, one in of.items():
                self._reports.append(
                    Report(
                        save=save,
                        done=done,
                        step=one.step,
                        reason="the uploader process is gone",
                    )
                )
            of.clear()


_uploaders: WeakSet[Uploader] = WeakSet()


def _disown() -> None:
    """In a forked child of the trainer."""
    # A worker of a loader may live on when the trainer is killed. With a copy of this end of the
    # socket it would keep the uploader waiting for a trainer that is gone.
    for uploader in _uploaders:
        uploader.connection.close()


os.register_at_fork(after_in_child=_disown)
