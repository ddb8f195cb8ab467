"""The uploader: a process in its own session that outlives the trainer's signals and finishes what
is staged.

The staging memory and a socket come as open descriptors. torchrun sends SIGTERM to the trainer's
whole process group, and a save in flight must survive that: hence the session, and SIGTERM is
ignored. When the trainer has ended, the uploader commits what it has and ends too. It must start
fast and stay small: no torch here.

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
from holdfast.checkpoint.format import Manifest, Shard, shallow_asdict
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.format.validation import read_shard
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.save.references import SharedNames
from holdfast.checkpoint.save.retention import CommitCache, FailedAttempts, retain
from holdfast.checkpoint.save.shared_shards import MIN_BYTES, SharedShards
from holdfast.checkpoint.save.uploader import Job, UploadOrders
from holdfast.checkpoint.stores.factory import reliable_storage
from holdfast.checkpoint.stores.storage import Storage, crc32c, put_object
from holdfast.support.errors import InputError

# Longest wait for the commit of a save once the trainer has ended.
ORPHAN_PATIENCE_S = 60.0
NICENESS = 5
# The reason of a save that failed on the coordinator only because another rank's part did.
ANOTHER_RANK_FAILED = "another rank failed"


class Mailbox:
    """Receives messages from the trainer. Jobs wait for their turn; `abandon` names a save and may
    come in the middle of it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.copies: queue.SimpleQueue[Job] = queue.SimpleQueue()
        """Jobs to copy to a neighbor, which do not wait for uploads."""
        self._changed = threading.Condition()
        self._abandoned: set[int] = set()
        self._orphaned_at = math.inf
        """Time at which the trainer ended."""
        threading.Thread(
            target=self._read,
            name="mailbox",
            daemon=True,
        ).start()

    def _read(self) -> None:
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                if "abandon" in message:
                    with self._changed:
                        self._abandoned.add(message["abandon"])
                        self._changed.notify_all()
                    continue
                job = Job.decode(message)
                if job.copy:
                    self.copies.put(job)
                if job.upload:
                    self._jobs.put(job)
        # The trainer's end is no order to stop: what it has handed over may be the last checkpoint.
        self._orphaned_at = time.monotonic()
        self._jobs.put(None)

    def next(self) -> Job | None:
        """Waits for the next job to upload. None: the trainer has ended."""
        return self._jobs.get()

    def is_abandoned(self, save: int, wait_s: float) -> bool:
        """Waits up to `wait_s` for the order to abandon this save."""
        with self._changed:
            is_ordered = self._changed.wait_for(lambda: save in self._abandoned, wait_s)
        deadline = self._orphaned_at + ORPHAN_PATIENCE_S
        return is_ordered or time.monotonic() > deadline

    def report(self, **fields: object) -> None:
        with suppress(OSError):  # the trainer has ended: finish all the same
            line = json.dumps(fields) + "\n"
            self._connection.sendall(line.encode())


class Memory:
    """A staging memory. It is mapped again only when it grew: gigabytes are slow to fault in."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._view = memoryview(b"")

    def view(self, length: int) -> memoryview:
        if len(self._view) < length:
            size = os.fstat(self._descriptor).st_size
            self._view = memoryview(mmap.mmap(self._descriptor, size))
        return self._view[:length]


class Saves:
    """Uploads and commits what the trainer hands over, and deletes what no retention rule keeps."""

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
        self._commit_cache: CommitCache = {}
        self._shared = SharedShards(storage)
        self._shared_names: SharedNames = {}
        self._is_store_verified = False

    def serve(self) -> None:
        """Runs until the trainer has ended and its last save has finished."""
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
                self._mailbox.report(save=job.save, **_describe_failure(error))
                self._failed.add(job.manifest, error)
                self._failed.clear()
                # A full store may have room again once retention has deleted what no rule keeps.
                changed = isinstance(error, Full) and job.manifest.rank == 0
            finally:
                failpoint("upload.end")
            # After the report: a slow deletion must not keep the trainer from its next save.
            if changed:
                with suppress(StorageError, Damaged, OSError):  # the next save tries again
                    retain(
                        self._storage,
                        job.manifest.run,
                        self._policy,
                        cache=self._commit_cache,
                        shared_names=self._shared_names,
                    )

    def _save(self, job: Job) -> bool:
        """Saves one job, and returns whether it wrote a commit."""
        started_at = time.monotonic()
        tuning = self._tuning
        memory = self._memories[job.memory].view(job.length)
        # Resets the count: bytes that a failed earlier save stored do not belong to this one.
        self._shared.take_byte_count()
        manifest = upload(
            self._storage,
            memory,
            job,
            parallel=tuning.parallel,
            shared=self._shared,
        )
        once_bytes = self._shared.take_byte_count()
        written = {
            "written_bytes": once_bytes + _count_own_bytes(manifest),
            "once_bytes": once_bytes,
        }
        self._verify_store(manifest)
        self._mailbox.report(
            save=job.save,
            done="uploaded",
            seconds=time.monotonic() - started_at,
            bytes=manifest.length,
            shared=[shallow_asdict(shard) for shard in manifest.shards if shard.sha256],
            **written,
        )
        if manifest.rank:
            return False
        record = commit(
            self._storage,
            manifest,
            state=self._commits,
            timeout_s=tuning.commit_timeout_s,
            abandoned=partial(self._mailbox.is_abandoned, job.save),
        )
        seconds = time.monotonic() - started_at
        self._mailbox.report(
            save=job.save,
            done="committed",
            seconds=seconds,
            bytes=record.total_bytes,
            **written,
        )
        return True

    def _verify_store(self, manifest: Manifest) -> None:
        """Reads back one shard of each save until a shard has verified. Raises Damaged.

        A store that corrupts data is noticed in the first save of each start, before retention
        deletes the last good checkpoint.
        """
        if self._is_store_verified or not manifest.shards:
            return
        # A shard of this save's own, if it has one: an earlier start may have written shared ones.
        own_indices = [index for index, shard in enumerate(manifest.shards) if not shard.sha256]
        try:
            read_shard(self._storage, manifest, own_indices[0] if own_indices else 0)
        except Damaged as error:
            raise Damaged(f"the store returns other bytes than it was sent: {error}") from error
        self._is_store_verified = True


def _count_own_bytes(manifest: Manifest) -> int:
    """Returns the size of the shards that no other checkpoint names."""
    return sum(shard.bytes for shard in manifest.shards if not shard.sha256)


def _describe_failure(error: Exception) -> dict[str, str]:
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
    shared: SharedShards | None = None,
) -> Manifest:
    """Uploads shards in parallel, then the manifest, which shows that all shards are stored.

    `shared` stores the shards of frozen parameters, unless the store already has them; shards that
    the job names are not written. Returns the complete manifest. Raises StorageError.
    """
    failpoint("upload.begin")
    manifest = job.manifest
    # A shard ends where the frozen parameters end, so that no shard holds both kinds.
    frozen_bytes = job.frozen_bytes if shared and job.frozen_bytes >= MIN_BYTES else 0
    stretches = [*_split(memory[:frozen_bytes], job.shard_bytes)]
    frozen_shards = len(stretches)
    stretches += _split(memory[frozen_bytes : job.length], job.shard_bytes)

    def put_shard(numbered_data: tuple[int, memoryview]) -> Shard:
        index, data = numbered_data
        checksum = crc32c(data)
        if shared is not None and index < frozen_shards:
            shard = shared.store(manifest.run, index, data, checksum)
            if shard is not None:
                return shard
        put_object(
            storage,
            manifest.shard_name(len(job.shared) + index),
            data,
            checksum,
        )
        failpoint("upload.shard")
        return Shard(bytes=len(data), crc32c=checksum)

    # Checksums are computed in the same threads: one shard's sum during another's request costs no
    # time.
    with ThreadPoolExecutor(parallel, thread_name_prefix="shard") as pool:
        shards = tuple(pool.map(put_shard, enumerate(stretches)))
    manifest = replace(manifest, shards=job.shared + shards)
    payload = memoryview(bytearray(manifest.encode()))
    put_object(
        storage,
        manifest.name,
        payload,
        crc32c(payload),
    )
    failpoint("upload.manifest")
    return manifest


def _split(memory: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, len(memory), size):
        yield memory[start : start + size]


def hand_over_copies(
    mailbox: Mailbox,
    memories: list[Memory],
    places: PeerPlaces,
    start: int,
) -> None:
    """Copies staged bytes to the neighbor's keeper, for each job that asks for it. Runs in its own
    thread, and never returns.
    """
    while True:
        job = mailbox.copies.get()
        started_at = time.monotonic()
        thread_time_s = time.thread_time()
        memory = memories[job.memory].view(job.length)
        shards: list[Shard] = []
        for data in _split(memory, job.shard_bytes):
            shards.append(Shard(bytes=len(data), crc32c=crc32c(data)))
        manifest = replace(job.manifest, shards=tuple(shards))
        try:
            failpoint("peer.copy")
            places.announce_shard(manifest, job.memory, start)
            receiving_s = places.copy(
                manifest,
                memory,
                job.keep,
                start,
            )
            if places.spools:
                receiving_s += places.spool(
                    manifest,
                    job.memory,
                    job.keep,
                    start,
                )
            failpoint("peer.copied")
            sending_s = time.thread_time() - thread_time_s
            mailbox.report(
                save=job.save,
                done="copied",
                bytes=job.length,
                seconds=time.monotonic() - started_at,
                # A node that sends a copy also receives one.
                processor_s=sending_s + receiving_s,
            )
        except StorageError as error:
            mailbox.report(
                save=job.save,
                done="uncopied",
                reason=str(error)[:500],
            )


def _use_spare_cores(training_threads: int) -> None:
    """Pins this process to cores without a training thread, if there are any.

    Otherwise the scheduler may start it on a training core and move it a tick later, which slows
    that step.
    """
    if hasattr(os, "sched_setaffinity"):
        spare = sorted(os.sched_getaffinity(0))[training_threads:]
        if spare:
            os.sched_setaffinity(0, spare)


def main() -> None:
    """Runs the process. Its arguments are the orders, the socket's descriptor, and those of the
    staging memories.
    """
    # First of all: until this is done, any signal would end the process and lose the save for which
    # it was started.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    orders = UploadOrders.decode(sys.argv[1])
    connection, *descriptors = map(int, sys.argv[2:])
    # Training comes first on a shared core; an upload waits for the network most of the time.
    os.nice(NICENESS)
    _use_spare_cores(orders.training_threads)
    mailbox = Mailbox(socket.socket(fileno=connection))
    memories = [Memory(descriptor) for descriptor in descriptors]
    places = PeerPlaces.of_environment()
    if places:
        # Before the first job: the launcher ends this process before other ranks write the memories
        # that it reads.
        try:
            places.register_uploader(os.getpid())
        except StorageError as error:
            sys.exit(f"error: {error}")
        threading.Thread(
            target=hand_over_copies,
            args=(mailbox, memories, places, orders.epoch),
            name="copies",
            daemon=True,
        ).start()
    storage = reliable_storage(orders.url, orders.tuning, create=True)
    Saves(
        mailbox,
        memories,
        storage,
        orders,
    ).serve()
