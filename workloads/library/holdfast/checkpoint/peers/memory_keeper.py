"""The memory of a node: the staging memories of its own ranks, and the copies that uploaders of a
neighbour hand over.

A keeper is a thread of the launcher, which outlives its ranks. It has room for two copies of each
rank of the neighbour: a complete one and one that arrives. The sender names the version that every
node has complete; that one stays, the other is overwritten. A copy is compared with its digests
before it counts, and is never replaced by another of the same version.
"""

import mmap
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest, hex_digest
from holdfast.checkpoint.format.decoding import MAX_MANIFEST_BYTES, parse_manifest
from holdfast.checkpoint.peers import protocol
from holdfast.checkpoint.peers.keeper_client import Version
from holdfast.checkpoint.peers.protocol import Head
from holdfast.checkpoint.stores.storage import crc32c, fill
from holdfast.support.errors import HoldfastError, InputError

MOST_CONNECTIONS = 256
SLOTS = 2
"""One complete copy, and one that arrives."""
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
MEMINFO = Path("/proc/meminfo")


class Refused(HoldfastError):
    """The keeper refuses a question; the text goes to the peer that asked."""


@dataclass(kw_only=True, slots=True)
class StoredShard:
    """A shard of one rank, in a staging memory or as a copy."""

    manifest: Manifest
    payload: bytes
    """The manifest as it was sent."""
    data: memoryview
    start: int
    """Number of the trainer's start, as in its commits."""
    memory: int = -1
    """Number of the staging memory of this node's rank; -1: a neighbour's copy."""
    local: int = -1
    """Local rank of this node that staged it; -1: a neighbour's copy."""

    @property
    def version(self) -> Version:
        return self.manifest.step, self.manifest.attempt

    def describe(self) -> Head:
        return {
            "rank": self.manifest.rank,
            "step": self.manifest.step,
            "attempt": self.manifest.attempt,
            "world_size": self.manifest.world_size,
            "length": len(self.payload),
            "sha256": hex_digest(self.payload),
            "bytes": self.manifest.length,
            "start": self.start,
            "memory": self.memory,
            "local": self.local,
        }

    def find_object(self, name: str) -> memoryview | None:
        """Returns the bytes of a manifest or of a shard by its object name; None: not of these."""
        if name == self.manifest.name:
            return memoryview(self.payload)
        for index, stretch in enumerate(self.manifest.stretches()):
            if name == self.manifest.shard_name(index):
                return self.data[stretch]
        return None


@dataclass(slots=True)
class Slot:
    """Memory for one copy. While another arrives it has no shard."""

    room: memoryview = field(default_factory=lambda: memoryview(b""))
    shard: StoredShard | None = None
    arriving: bool = False

    def release(self) -> None:
        """Gives the copy and its memory up."""
        self.shard = None
        self.room = memoryview(b"")


class Keeper:
    """Serves the memory of a node over TCP, in threads of the launcher."""

    def __init__(self, run: str, memories: list[list[int]]) -> None:
        """Listens on a free port. `memories`: descriptors of the staging memories of each local
        rank.
        """
        self._run = run
        self._key = protocol.peer_key(run)
        self._memories = memories
        self.epoch = 0
        """Messages of another epoch are refused."""
        self._closed_epoch = 0
        """The newest epoch whose uploaders were killed. An uploader of it that starts late must not
        read memory that others write.
        """
        self._lock = threading.Lock()
        self._staged: dict[tuple[int, int], StoredShard] = {}
        """Shards in staging memories, by local rank and number of the memory. The rank of a process
        changes with the size of the gang, its memories do not.
        """
        self._copies: dict[int, list[Slot]] = {}
        """Slots for copies of the neighbour's shards, by rank."""
        self._uploaders: list[int] = []
        """Handles of the processes that read the staging memories."""
        dual_stack = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual_stack else socket.AF_INET
        self._listener = socket.create_server(
            ("", 0),
            family=family,
            dualstack_ipv6=dual_stack,
            backlog=MOST_CONNECTIONS,
        )
        self.port: int = self._listener.getsockname()[1]
        self._free_connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        threading.Thread(
            target=self._accept,
            name="keeper",
            daemon=True,
        ).start()

    @property
    def uploader_count(self) -> int:
        """Number of ranks of this epoch that have restored their state and started an uploader."""
        with self._lock:
            return 0 if self.epoch == self._closed_epoch else len(self._uploaders)

    def end_uploaders(self) -> None:
        """Kills the registered uploaders and returns when they have ended.

        An uploader of ranks that have ended must not read a memory that the next ranks write.
        """
        with self._lock:
            handles = self._uploaders
            self._uploaders = []
            self._closed_epoch = self.epoch
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [])
            os.close(handle)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._free_connections.acquire()
                threading.Thread(
                    target=self._serve,
                    args=(connection,),
                    name="keeper",
                    daemon=True,
                ).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(protocol.TIMEOUT_S)
        # A stranger, a member that died, a malformed message: the connection ends, nothing else.
        with (
            connection,
            suppress(
                OSError,
                EOFError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                RecursionError,
            ),
        ):
            try:
                challenge = os.urandom(protocol.CHALLENGE_BYTES)
                connection.sendall(challenge)
                head = protocol.receive_head(
                    connection,
                    self._key,
                    b"ask",
                    challenge,
                )
                # These name processes and memory of this node.
                is_local_question = head["op"] in ("hello", "own")
                if is_local_question and not _is_from_this_node(connection):
                    return
                nonce = bytes.fromhex(head["nonce"])
                self._answer(connection, head, nonce)
            finally:
                self._free_connections.release()

    def _answer(
        self,
        connection: socket.socket,
        head: Head,
        nonce: bytes,
    ) -> None:
        side = b"answer"
        slot = None
        answer = Head()
        data = memoryview(b"")
        try:
            match head["op"]:
                case "own" | "copy":
                    slot = self._reserve_slot(head)
                    protocol.send_head(
                        connection,
                        self._key,
                        side,
                        nonce,
                        {},
                    )
                    side = b"taken"
                    manifest, payload = self._receive_manifest(connection, head)
                    if slot:
                        self._receive_copy(
                            connection,
                            head,
                            manifest,
                            payload,
                            slot,
                        )
                        answer = {"processor_s": time.thread_time()}
                    else:
                        self._add_local_shard(head, manifest, payload)
                case "hello":
                    epoch = int(head["epoch"])
                    self._add_uploader(epoch, int(head["pid"]))
                case "have":
                    with self._lock:
                        answer = {"held": [shard.describe() for shard in self._shards()]}
                case "read":
                    name = str(head["name"])
                    start = int(head["from"])
                    data = self._find_bytes(name, start, int(head["bytes"]))
                case _:
                    raise Refused("unknown operation")
        except (Refused, Damaged, InputError) as error:
            answer = {"refused": str(error)[:300]}
        finally:
            if slot:
                slot.arriving = False
        protocol.send_head(
            connection,
            self._key,
            side,
            nonce,
            answer,
        )
        connection.sendall(data)

    def _add_uploader(self, epoch: int, pid: int) -> None:
        with self._lock:
            check_epoch(epoch, self.epoch)
            if self.epoch == self._closed_epoch:
                raise Refused("the ranks of this epoch have ended")
            self._uploaders.append(os.pidfd_open(pid))

    def _shards(self) -> Iterator[StoredShard]:
        """Yields every shard of this node. Caller holds the lock."""
        yield from self._staged.values()
        for slots in self._copies.values():
            for slot in slots:
                if slot.shard:
                    yield slot.shard

    def _receive_manifest(self, connection: socket.socket, head: Head) -> tuple[Manifest, bytes]:
        payload = protocol.receive(connection, int(head["length"]))
        if hex_digest(payload) != head["sha256"]:
            raise Refused("the manifest does not match its digest")
        manifest = parse_manifest(payload)
        identity = (
            manifest.run,
            manifest.rank,
            manifest.step,
            manifest.attempt,
            manifest.length,
        )
        announced = (
            self._run,
            head["rank"],
            head["step"],
            head["attempt"],
            head["bytes"],
        )
        if identity != announced:
            raise Refused("the manifest belongs to another shard")
        return manifest, payload

    def _add_local_shard(
        self,
        head: Head,
        manifest: Manifest,
        payload: bytes,
    ) -> None:
        memory = int(head["memory"])
        local_rank = int(head["local"])
        descriptor = self._memories[local_rank][memory]
        view = memoryview(b"")
        # A rank that writes nothing, such as a second replica, has an empty memory, which cannot be
        # mapped.
        if manifest.length:
            size = os.fstat(descriptor).st_size
            memory_map = mmap.mmap(descriptor, size)
            view = memoryview(memory_map)[: manifest.length]
        shard = StoredShard(
            manifest=manifest,
            payload=payload,
            data=view,
            start=int(head["start"]),
            memory=memory,
            local=local_rank,
        )
        with self._lock:
            self._staged[local_rank, memory] = shard

    def _receive_copy(
        self,
        connection: socket.socket,
        head: Head,
        manifest: Manifest,
        payload: bytes,
        slot: Slot,
    ) -> None:
        failpoint("peer.receive")
        data = slot.room[: manifest.length]
        fill(data, "the copy", connection.recv_into)
        for shard, stretch in zip(manifest.shards, manifest.stretches(), strict=True):
            if crc32c(data[stretch]) != shard.crc32c:
                raise Refused(
                    f"rank {manifest.rank}: the bytes that came are not those that were sent"
                )
        with self._lock:
            check_epoch(int(head["epoch"]), self.epoch)
            slot.shard = StoredShard(
                manifest=manifest,
                payload=payload,
                data=data,
                start=int(head["start"]),
            )

    def _reserve_slot(self, head: Head) -> Slot | None:
        """Reserves an empty slot that is large enough for the announced copy; None: the shard stays
        in its staging memory. Raises Refused.
        """
        rank = int(head["rank"])
        version = (int(head["step"]), str(head["attempt"]))
        length = int(head["bytes"])
        keep = tuple(head.get("keep", ()))
        manifest_length = int(head["length"])
        if not 0 < manifest_length <= MAX_MANIFEST_BYTES or length < 0:
            raise Refused(f"a manifest has 1 to {MAX_MANIFEST_BYTES} bytes")
        with self._lock:
            check_epoch(int(head["epoch"]), self.epoch)
            if head["op"] == "own":
                return None
            slots = self._copies.setdefault(rank, [Slot() for _ in range(SLOTS)])
            slot = choose_slot(slots, version, keep)
            remaining = self._drop_former_copies(rank, keep)
            if len(slot.room) < length:
                slot.release()
                too_small = sum(len(candidate.room) < length for candidate in slots)
                # Those that remain become free while this neighbour's copies arrive.
                check_room(rank, length, max(1, too_small - remaining))
                # Private: shared memory takes half as long again to touch.
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                slot.room = memoryview(mmap.mmap(-1, length, flags=flags))
            slot.shard = None
            slot.arriving = True
        return slot

    def _drop_former_copies(self, rank: int, keep: tuple[Any, ...]) -> int:
        """Drops copies of a former neighbour that are older than `keep`.

        A replacement in another failure domain, and another size of the gang, change whose copies
        come here. Returns how many copies of former neighbours remain. Caller holds the lock.
        """
        ranks_per_node = len(self._memories)
        remaining = 0
        for former_rank, slots in self._copies.items():
            if former_rank // ranks_per_node == rank // ranks_per_node:
                continue
            for slot in slots:
                if slot.arriving:
                    remaining += 1
                    continue
                if slot.shard is None or _stored_step(slot) < keep[0]:
                    slot.release()
                remaining += bool(slot.room)
        return remaining

    def _find_bytes(
        self,
        name: str,
        start: int,
        length: int,
    ) -> memoryview:
        with self._lock:
            for shard in self._shards():
                data = shard.find_object(name)
                if data is None:
                    continue
                if not 0 <= start <= start + length <= len(data):
                    raise Refused(f"{name} has {len(data)} bytes")
                return data[start : start + length]
        raise Refused(f"this node does not hold {name}")


def _is_from_this_node(connection: socket.socket) -> bool:
    peer = connection.getpeername()[0]
    return peer == connection.getsockname()[0]


def check_epoch(message_epoch: int, node_epoch: int) -> None:
    """Raises Refused if a message is from another epoch."""
    if message_epoch != node_epoch:
        raise Refused(
            f"the message is from epoch {message_epoch}, and this node is in epoch {node_epoch}"
        )


def choose_slot(
    slots: Sequence[Slot],
    version: Version,
    keep: tuple[Any, ...],
) -> Slot:
    """Chooses which of a rank's slots to overwrite with `version`; never the one that holds `keep`.

    Raises Refused if `version` is there already, or no slot is free.
    """
    free_slots: list[Slot] = []
    for slot in slots:
        if slot.shard and slot.shard.version == version:
            raise Refused(f"a copy of step {version[0]} is there already")
        is_needed = slot.shard is not None and slot.shard.version == keep
        if not slot.arriving and not is_needed:
            free_slots.append(slot)
    if not free_slots:
        raise Refused("another copy of this rank is arriving")
    # The older of two that are complete: a neighbour may need the newer one in a moment.
    return min(free_slots, key=_stored_step)


def _stored_step(slot: Slot) -> int:
    return slot.shard.version[0] if slot.shard else -1


def check_room(
    rank: int,
    length: int,
    count: int,
) -> None:
    """Raises Refused, with the arithmetic, unless `count` more copies of `length` bytes fit."""
    free = free_bytes()
    needed = count * length
    if needed > free:
        size = f"{count} copies of {length / 1e6:.0f} MB"
        raise Refused(
            f"rank {rank} needs {size}, {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free"
        )


def memory_limit() -> int:
    """Returns how much memory this container may take in all."""
    limits: list[int] = []
    with suppress(OSError, ValueError):  # no limit: "max"
        limits.append(int(MEMORY_LIMIT.read_text()))
    with suppress(OSError, ValueError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemTotal"):
                kibibytes = int(line.split()[1])
                limits.append(kibibytes << 10)
    return min(limits, default=1 << 62)


def free_bytes() -> int:
    """Returns how much memory this container may still take; a huge number if no limit is known."""
    limits: list[int] = []
    with suppress(OSError, ValueError):  # no limit: "max"
        limit = int(MEMORY_LIMIT.read_text())
        limits.append(limit - int(MEMORY_USED.read_text()))
    with suppress(OSError, ValueError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable"):
                kibibytes = int(line.split()[1])
                limits.append(kibibytes << 10)
    return min(limits, default=1 << 62)
