"""The uploader: a process in its own session that outlives the trainer's signals and finishes what is staged.

The staging memory and a socket come as open descriptors. torchrun sends
SIGTERM to the trainer's whole process group, and a save in flight must survive that: so a session of its
own, and SIGTERM ignored. When the trainer is gone it commits what it has and leaves.
"""

# Why it is so: infra/decisions/0027.

import argparse
import json
import math
import mmap
import os
import queue
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.checkpoint.commit import Series, commit
from holdfast.checkpoint.errors import Abandoned, Damaged, Fenced, Full, StorageError
from holdfast.checkpoint.failed_attempts import FailedAttempts
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.retention import Policy, retain
from holdfast.checkpoint.retrying import Retrying
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.stores import open_storage
from holdfast.checkpoint.upload import ANOTHER_RANK_FAILED, PROBE_BYTES, Job, probe, upload
from holdfast.contract.errors import InputError

# How long a committed checkpoint is still hoped for once the trainer is gone.
ORPHAN_PATIENCE_S = 60.0


class Mailbox:
    """Orders from the trainer. Jobs wait for their turn; `abandon` names a save and may come in the middle of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._abandoned: set[int] = set()
        self._orphaned_at = math.inf
        threading.Thread(target=self._read, name="mailbox", daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                order: dict[str, Any] = json.loads(line)
                if "abandon" in order:
                    with self._changed:
                        self._abandoned.add(order["abandon"])
                        self._changed.notify_all()
                else:
                    self._jobs.put(Job.decode(order))
        # The trainer's end is no order to stop: what it has handed over may be the last checkpoint.
        self._orphaned_at = time.monotonic()
        self._jobs.put(None)

    def next(self) -> Job | None:
        """None once the trainer is gone."""
        return self._jobs.get()

    def abandoned(self, save: int, wait_s: float) -> bool:
        """Waits that long for the order to give this save up."""
        with self._changed:
            given_up = self._changed.wait_for(lambda: save in self._abandoned, wait_s)
        return given_up or time.monotonic() > self._orphaned_at + ORPHAN_PATIENCE_S

    def report(self, **fields: object) -> None:
        with suppress(OSError):  # nobody listens any more: finish all the same
            self._connection.sendall(json.dumps(fields).encode() + b"\n")


class Memory:
    """A staging memory, mapped again only when it grew: a mapping of gigabytes is slow to fault in."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._view = memoryview(b"")

    def view(self, length: int) -> memoryview:
        if len(self._view) < length:
            self._view = memoryview(mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size))
        return self._view[:length]


def serve(mailbox: Mailbox, memories: list[Memory], storage: Storage, options: argparse.Namespace) -> None:
    policy = Policy(damaged=_attempts(options.damaged), stale=_attempts(options.stale), **json.loads(options.policy))
    series = Series(standing=options.standing, keep=policy.keep, damaged=policy.damaged, epoch=options.epoch)
    failed = FailedAttempts(storage)
    while (job := mailbox.next()) is not None:
        failed.clear()
        try:
            changed = save(mailbox, memories[job.memory].view(job.length), storage, job, series, options)
        except (Abandoned, Fenced, StorageError, Damaged, InputError, OSError, EOFError) as error:
            mailbox.report(save=job.save, **outcome(error))
            failed.add(job.manifest, error)
            failed.clear()
            changed = isinstance(error, Full) and job.manifest.rank == 0
        finally:
            failpoint("upload.end")
        # After the report: a slow deletion must not keep the trainer from its next save.
        if changed:
            with suppress(StorageError, Damaged, OSError):  # the next save tries again
                retain(storage, job.manifest.run, policy)


def save(
    mailbox: Mailbox, memory: memoryview, storage: Storage, job: Job, series: Series, options: argparse.Namespace
) -> bool:
    """Whether a commit was written."""
    began = time.monotonic()
    manifest = upload(storage, memory, job, parallel=options.parallel)
    mailbox.report(save=job.save, done="uploaded", seconds=time.monotonic() - began, bytes=job.length)
    if manifest.rank:
        return False
    abandoned = partial(mailbox.abandoned, job.save)
    record = commit(storage, manifest, series=series, timeout_s=options.commit_timeout_s, abandoned=abandoned)
    mailbox.report(save=job.save, done="committed", seconds=time.monotonic() - began, bytes=record.total_bytes)
    return True


def outcome(error: Exception) -> dict[str, str]:
    if isinstance(error, Fenced):
        return {"done": "fenced", "reason": str(error)}
    reason = ANOTHER_RANK_FAILED if isinstance(error, Abandoned) else f"{type(error).__name__}: {error}"[:500]
    return {"done": "failed", "reason": reason}


def _attempts(joined: str) -> frozenset[str]:
    return frozenset(filter(None, joined.split(",")))


def keep_to_spare_cores(training_threads: int) -> None:
    """Where more cores than training threads are: the scheduler wakes a process of any priority beside a thread that
    computes, and parts the two a tick later, which that step pays for."""
    if hasattr(os, "sched_setaffinity"):
        spare = sorted(os.sched_getaffinity(0))[training_threads:]
        if spare:
            os.sched_setaffinity(0, spare)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("socket", "standing", "parallel", "niceness", "training-threads", "epoch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("commit-timeout-s", "retry-s", "request-s"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("url", "run", "damaged", "stale", "policy"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--memory", type=int, action="append", required=True)
    return parser.parse_args()


def main() -> None:
    # First of all: until here each of them would end the process, and with it the save that it is started for.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    options = arguments()
    # Training comes first on a shared core; an upload waits for the network most of the time.
    os.nice(options.niceness)
    keep_to_spare_cores(options.training_threads)
    mailbox = Mailbox(socket.socket(fileno=options.socket))
    storage = Retrying(open_storage(options.url, request_s=options.request_s), budget_s=options.retry_s)
    mailbox.report(save=0, done="ready")
    try:
        seconds = probe(storage, options.run)
        mailbox.report(save=0, done="probed", seconds=seconds, bytes=PROBE_BYTES)
    except (StorageError, InputError, OSError) as error:
        mailbox.report(save=0, done="unprobed", reason=f"{type(error).__name__}: {error}"[:500])
    serve(mailbox, [Memory(descriptor) for descriptor in options.memory], storage, options)


if __name__ == "__main__":
    main()
