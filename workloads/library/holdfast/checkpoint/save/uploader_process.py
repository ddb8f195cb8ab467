"""The uploader: a process in its own session that outlives the trainer's signals and finishes what
is staged.

The staging memory and a socket come as open descriptors. torchrun sends SIGTERM to the trainer's
whole process group, and a save in flight must survive that: so a session of its own, and SIGTERM
ignored. When the trainer is gone it commits what it has and leaves. It must start fast and stay
small: no torch here.

Decision: infra/decisions/0027.
"""

import json
import math
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.checkpoint.errors import Abandoned, Damaged, Fenced, Full, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest, Shard
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.format.soundness import read_shard
from holdfast.checkpoint.peers.places import PeerPlaces
from holdfast.checkpoint.save.retention import FailedAttempts, Known, retain
from holdfast.checkpoint.save.uploader import Job, UploadOrders
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.stores.storage import Storage, crc32c, put_object
from holdfast.support.errors import InputError

# How long a committed checkpoint is still hoped for once the trainer is gone.
ORPHAN_PATIENCE_S = 60.0
NICENESS = 5
# The reason of a save that failed on the coordinator only because another rank's part did.
ANOTHER_RANK_FAILED = "another rank failed"


class Mailbox:
    """UploadOrders from the trainer. Jobs wait for their turn; `abandon` names a save and may come
    in the middle of it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.copies: queue.SimpleQueue[Job] = queue.SimpleQueue()
        """For a neighbour: they do not wait for uploads."""
        self._changed = threading.Condition()
        self._abandoned: set[int] = set()
        self._orphaned_at = math.inf
        threading.Thread(
            target=self._read,
            name="mailbox",
            daemon=True,
        ).start()

    def _read(self) -> None:
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                order: dict[str, Any] = json.loads(line)
                if "abandon" in order:
                    with self._changed:
                        self._abandoned.add(order["abandon"])
                        self._changed.notify_all()
                    continue
                job = Job.decode(order)
                if job.copy:
                    self.copies.put(job)
                if job.upload:
                    self._jobs.put(job)
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
        with suppress(OSError):  # the trainer is gone: finish all the same
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


class Saves:
    """Of one start: what the trainer hands over is uploaded and committed, and what no rule keeps
    is deleted.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        memories: list[Memory],
        storage: Storage,
        orders: UploadOrders,
    ) -> None:
        self._mailbox = mailbox
        self._memories = memories
        self._storage = storage
        self._tuning = orders.tuning
        self._policy = orders.policy
        self._commits = CommitState(
            commit_count=orders.commit_count,
            keep=orders.keep,
            damaged=self._policy.damaged,
            epoch=orders.epoch,
        )
        self._failed = FailedAttempts(storage)
        self._known = Known()
        self._read_back = False

    def serve(self) -> None:
        """Until the trainer is gone and its last save has finished."""
        while (job := self._mailbox.next()) is not None:
            self._failed.clear()
            try:
                changed = self._save(job)
            except (
                Abandoned,
                Fenced,
                StorageError,
                Damaged,
                InputError,
                OSError,
                EOFError,
            ) as error:
                self._mailbox.report(save=job.save, **_outcome(error))
                self._failed.add(job.manifest, error)
                self._failed.clear()
                # A full store may have room again once retention has deleted what no rule keeps.
                changed = isinstance(error, Full) and job.manifest.rank == 0
            finally:
                failpoint("upload.end")
            # After the report: a slow deletion must not keep the trainer from its next save.
            if changed:
                with suppress(StorageError, Damaged, OSError):  # the next save tries again
                    retain(self._storage, job.manifest.run, self._policy, known=self._known)

    def _save(self, job: Job) -> bool:
        """Whether a commit was written."""
        began = time.monotonic()
        tuning = self._tuning
        memory = self._memories[job.memory].view(job.length)
        manifest = upload(self._storage, memory, job, parallel=tuning.parallel)
        self._check_first_shard(manifest)
        self._mailbox.report(
            save=job.save,
            done="uploaded",
            seconds=time.monotonic() - began,
            bytes=job.length,
        )
        if manifest.rank:
            return False
        given_up = partial(self._mailbox.abandoned, job.save)
        record = commit(
            self._storage,
            manifest,
            state=self._commits,
            timeout_s=tuning.commit_timeout_s,
            abandoned=given_up,
        )
        seconds = time.monotonic() - began
        self._mailbox.report(
            save=job.save,
            done="committed",
            seconds=seconds,
            bytes=record.total_bytes,
        )
        return True

    def _check_first_shard(self, manifest: Manifest) -> None:
        """Of each start in the first save, and in each save until one is sound: a store that spoils
        what it takes is found here, and not at the next start, when retention has replaced every
        sound checkpoint. Raises Damaged.
        """
        if not self._read_back and manifest.shards:
            try:
                read_shard(self._storage, manifest, 0)
            except Damaged as error:
                raise Damaged(
                    f"the store gives back other bytes than it was sent: {error}"
                ) from error
            self._read_back = True


def _outcome(error: Exception) -> dict[str, str]:
    if isinstance(error, Fenced):
        return {
            "done": "fenced",
            "reason": str(error),
        }
    if isinstance(error, Abandoned):
        reason = ANOTHER_RANK_FAILED
    else:
        reason = f"{type(error).__name__}: {error}"[:500]
    return {"done": "failed", "reason": reason}


def upload(
    storage: Storage,
    memory: memoryview,
    job: Job,
    *,
    parallel: int,
) -> Manifest:
    """Shards in parallel, then the manifest, which says that they are all there. Raises
    StorageError.
    """
    failpoint("upload.begin")
    manifest = job.manifest

    def one(numbered: tuple[int, memoryview]) -> Shard:
        index, data = numbered
        checksum = crc32c(data)
        put_object(storage, manifest.shard_name(index), data, checksum)
        failpoint("upload.shard")
        return Shard(bytes=len(data), crc32c=checksum)

    # Checksums are computed in the same threads: one shard's sum during another's request costs no
    # time.
    with ThreadPoolExecutor(parallel, thread_name_prefix="shard") as pool:
        shards = tuple(pool.map(one, enumerate(_cut(memory[: job.length], job.shard_bytes))))
    manifest = replace(manifest, shards=shards)
    description = memoryview(bytearray(manifest.encode()))
    put_object(storage, manifest.name, description, crc32c(description))
    failpoint("upload.manifest")
    return manifest


def _cut(memory: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, len(memory), size):
        yield memory[start : start + size]


def hand_over_copies(
    mailbox: Mailbox,
    memories: list[Memory],
    places: PeerPlaces,
    start: int,
) -> None:
    """In a thread of its own: of each job that asks for it the staged bytes to the neighbour's
    keeper.
    """
    while True:
        job = mailbox.copies.get()
        began = time.monotonic()
        spent = time.thread_time()
        memory = memories[job.memory].view(job.length)
        parts = list(_cut(memory, job.shard_bytes))
        manifest = replace(
            job.manifest, shards=tuple(Shard(bytes=len(p), crc32c=crc32c(p)) for p in parts)
        )
        try:
            failpoint("peer.copy")
            places.own(manifest, job.memory, start)
            taken_s = places.copy(manifest, memory, job.keep, start)
            failpoint("peer.copied")
            # A node that hands one over takes another.
            costs = {
                "seconds": time.monotonic() - began,
                "processor_s": time.thread_time() - spent + taken_s,
            }
            mailbox.report(
                save=job.save,
                done="copied",
                bytes=job.length,
                **costs,
            )
        except StorageError as error:
            mailbox.report(
                save=job.save,
                done="uncopied",
                reason=str(error)[:500],
            )


def _keep_to_spare_cores(training_threads: int) -> None:
    """Where more cores than training threads are: the scheduler wakes a process of any priority
    next to a thread that computes, and parts the two a tick later, which that step pays for.
    """
    if hasattr(os, "sched_setaffinity"):
        spare = sorted(os.sched_getaffinity(0))[training_threads:]
        if spare:
            os.sched_setaffinity(0, spare)


def main() -> None:
    """Arguments: the orders, the socket's descriptor, and those of the staging memories."""
    # First of all: until here each of them would end the process, and with it the save that it is
    # started for.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    orders = UploadOrders.decode(sys.argv[1])
    connection, *memories = map(int, sys.argv[2:])
    # Training comes first on a shared core; an upload waits for the network most of the time.
    os.nice(NICENESS)
    _keep_to_spare_cores(orders.training_threads)
    mailbox = Mailbox(socket.socket(fileno=connection))
    mapped = [Memory(descriptor) for descriptor in memories]
    places = PeerPlaces.of_environment()
    if places:
        # Before the first job: the launcher ends this process before other ranks write the memories
        # that it reads.
        try:
            places.hello(os.getpid())
        except StorageError as error:
            sys.exit(f"error: {error}")
        copying = partial(hand_over_copies, mailbox, mapped, places, orders.epoch)
        threading.Thread(target=copying, name="copies", daemon=True).start()
    storage = reliable_storage(orders.url, orders.tuning, create=True)
    Saves(mailbox, mapped, storage, orders).serve()
