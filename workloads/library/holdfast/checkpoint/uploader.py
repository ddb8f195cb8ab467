"""The trainer's side of the uploader process: hand over a save, receive reports, never block on storage."""

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.upload import Job

ROOT = Path(__file__).parents[2]
# Not `python -m`: that puts the current folder first, and a queue.py there would be imported for the library's own.
# The first import binds the package to the copy that the trainer runs, whatever else is installed.
START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import holdfast
del sys.path[0]
from holdfast.checkpoint.uploader_process import main
main()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """`done`: probed, unprobed, staged, uploaded, committed, failed or fenced."""

    save: int
    done: str
    seconds: float = 0.0
    bytes: int = 0
    reason: str = ""


class Uploader:
    def __init__(
        self,
        url: str,
        run: str,
        memories: list[int],
        *,
        keep: int,
        tuning: Tuning,
        coordinator: bool,
        standing: int = 0,
        epoch: int = 0,
        damaged: Collection[str] = (),
        stale: Collection[str] = (),
        training_threads: int = 1,
    ) -> None:
        """`standing`: commits that this run has. `epoch`: number of this start. `damaged`: attempts whose commit is
        none. `stale`: attempts that get none any more. `training_threads`: that all ranks of this machine compute with.
        """
        self._coordinator = coordinator
        self._memories = memories
        self._standing = standing
        self._in_flight: list[int] = []
        self._reports: list[Report] = []
        self._sending = threading.Lock()
        self._options = {
            "url": url,
            "run": run,
            "damaged": ",".join(sorted(damaged)),
            "policy": _policy(keep, tuning),
            "stale": ",".join(sorted(stale)),
            "parallel": tuning.parallel,
            "niceness": tuning.niceness,
            "commit-timeout-s": tuning.commit_timeout_s,
            "retry-s": tuning.retry_s,
            "request-s": tuning.request_s,
            "training-threads": training_threads,
            "epoch": epoch,
        }
        self._start()

        _uploaders.add(self)

    def _start(self) -> None:
        self._buffer = b""
        # A socket and not a pipe: each side sees at once that the other is gone, whatever killed it.
        self._socket, theirs = socket.socketpair()
        options = [*self._options.items(), ("socket", theirs.fileno()), ("standing", self._standing)]
        flags = [f"--{name}={value}" for name, value in [*options, *(("memory", one) for one in self._memories)]]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, str(ROOT), *flags],
            # torchrun and kubelets signal process groups: the save in flight must not get those signals.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *self._memories),
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Saves: on the coordinator until their commit, elsewhere until their upload."""
        return tuple(self._in_flight)

    def submit(self, job: Job, *, after: Callable[[], object] | None = None) -> None:
        """`after`: wait for it first, in a thread; the save counts as in flight from now on."""
        assert job.save not in self._in_flight
        if self._process.poll() is not None:  # killed since: a new one has the same memory
            while self._in_flight:
                self._receive()
            self._socket.close()
            self._start()
        self._in_flight.append(job.save)
        if after is None:
            self._order(job.encode())
        else:
            threading.Thread(target=self._hand_over, args=(job, after), name="hand-over", daemon=True).start()

    def _hand_over(self, job: Job, after: Callable[[], object]) -> None:
        after()
        if job.save in self._in_flight:  # else its uploader is gone, and the memory may hold the next save
            self._order(job.encode())

    def _order(self, line: bytes) -> None:
        with self._sending, suppress(OSError):  # a dead uploader is noticed by the next poll
            self._socket.sendall(line + b"\n")

    def replace(self) -> None:
        """An uploader that is stuck beyond every timeout: end it; the next save starts another."""
        self._process.kill()
        self._process.wait()

    def abandon(self, save: int) -> None:
        """Another rank failed: do not wait for its shards."""
        self._order(json.dumps({"abandon": save}).encode())

    def poll(self, wait_s: float = 0.0) -> list[Report]:
        """Reports that have come since the last call."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if selector.select(wait_s):
                self._receive()
        reports, self._reports = self._reports, []
        return reports

    def finish(self, timeout_s: float, *, leave: int = 0, give_up: Callable[[], bool] = lambda: False) -> list[Report]:
        """Until at most `leave` are in flight, the time is over or `give_up` says so (asked some 20 times a second)."""
        deadline = time.monotonic() + timeout_s
        reports = self.poll()
        while len(self._in_flight) > leave and (left := deadline - time.monotonic()) > 0 and not give_up():
            reports += self.poll(min(0.05, left))
        return reports

    def close(self) -> None:
        """Let it go: it finishes what is in flight and ends by itself."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0 if not self._in_flight else 0.0)
        # A child that outlives its parent is the point; without this the interpreter warns about it.
        self._process.returncode = self._process.returncode or 0

    def disown(self) -> None:
        """In a forked child of the trainer: it must not hold the uploader when the trainer is gone."""
        self._socket.close()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, fields: dict[str, Any]) -> None:
        if fields["done"] == "ready":
            return
        report = Report(**fields)
        self._reports.append(report)
        # An uploader that is started later goes on with the count; a lower one would look like deleted commits.
        self._standing += report.done == "committed"
        ends = ("failed", "fenced", "committed" if self._coordinator else "uploaded")
        if report.done in ends and report.save in self._in_flight:
            self._in_flight.remove(report.save)

    def _died(self) -> None:
        self.replace()  # its socket closes a moment before it can be waited for; a save handed over then would be lost
        for save in self._in_flight:
            self._reports.append(Report(save=save, done="failed", reason="the uploader process is gone"))
        self._in_flight.clear()


def _policy(keep: int, tuning: Tuning) -> str:
    names = ("keep_every", "keep_best", "highest", "keep_younger_s", "keep_one_per_s", "orphan_age_s")
    return json.dumps({"keep": keep} | {name: getattr(tuning, name) for name in names})


_uploaders: WeakSet[Uploader] = WeakSet()


def _disown() -> None:
    # A worker of a loader may live on when the trainer is killed. With a copy of this end of the socket it would keep
    # the uploader waiting for a trainer that is gone.
    for uploader in _uploaders:
        uploader.disown()


os.register_at_fork(after_in_child=_disown)
