"""The memory of a node: staging memories of its own ranks, and the copies that a neighbour's
uploaders hand over.

In the launcher, which outlives its ranks. Of each rank of the neighbour there is room for one
complete copy and one that arrives. The sender names the version that every node has complete: that
one stays, the other gives way. A copy that arrived is compared with its digests before it counts,
and is never replaced by another of the same version.
"""

import mmap
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest, hex_digest
from holdfast.checkpoint.format.decoding import MAX_MANIFEST_BYTES, parse_manifest
from holdfast.checkpoint.peers import wire
from holdfast.checkpoint.peers.places import Version
from holdfast.checkpoint.peers.wire import Head
from holdfast.checkpoint.stores.storage import crc32c, fill
from holdfast.support.errors import HoldfastError, InputError

MOST_CONNECTIONS = 256
SLOTS = 2
"""One complete copy, one that arrives."""
GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
MEMINFO = Path("/proc/meminfo")


class Refused(HoldfastError):
    """What the asker is answered."""


@dataclass(kw_only=True, slots=True)
class Held:
    manifest: Manifest
    payload: bytes
    """The manifest as it was sent."""
    data: memoryview
    start: int
    """Number of the trainer's start, as in its commits."""
    memory: int = -1
    """Which staging memory of this node's rank; -1: a neighbour's copy."""

    @property
    def version(self) -> Version:
        return self.manifest.step, self.manifest.attempt

    def describe(self) -> Head:
        found = self.manifest
        about = {
            "rank": found.rank,
            "step": found.step,
            "attempt": found.attempt,
            "world_size": found.world_size,
        }
        digests = {
            "length": len(self.payload),
            "sha256": hex_digest(self.payload),
            "bytes": found.length,
        }
        return about | digests | {"start": self.start, "memory": self.memory}


@dataclass(slots=True)
class Slot:
    room: memoryview = field(default_factory=lambda: memoryview(b""))
    held: Held | None = None
    arriving: bool = False


class Keeper:
    def __init__(self, run: str, memories: list[list[int]]) -> None:
        """`memories`: descriptors of the staging memories of each local rank."""
        self._run = run
        self._key = wire.peer_key(run)
        self._memories = memories
        self.epoch = 0
        """What belongs to another is refused."""
        self._ended = 0
        """The newest whose uploaders were ended: one that starts late must not read memory that
        others write.
        """
        self._lock = threading.Lock()
        self._own: dict[tuple[int, int], Held] = {}
        """By rank and staging memory."""
        self._copies: dict[int, list[Slot]] = {}
        self._uploaders: list[int] = []
        """Handles of the processes that read the staging memories."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(
            ("", 0),
            family=family,
            dualstack_ipv6=both,
            backlog=MOST_CONNECTIONS,
        )
        self.port: int = self._listener.getsockname()[1]
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        threading.Thread(
            target=self._accept,
            name="keeper",
            daemon=True,
        ).start()

    def end_uploaders(self) -> None:
        """An uploader of ranks that are gone must not read a memory that the next ranks write."""
        with self._lock:
            handles = self._uploaders
            self._uploaders = []
            self._ended = self.epoch
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [])
            os.close(handle)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._free.acquire()
                threading.Thread(
                    target=self._serve,
                    args=(connection,),
                    name="keeper",
                    daemon=True,
                ).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(wire.TIMEOUT_S)
        # A stranger, a member that is gone, a message that no member sends: the connection ends,
        # and no more.
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
                challenge = os.urandom(wire.CHALLENGE_BYTES)
                connection.sendall(challenge)
                head = wire.receive_head(connection, self._key, b"ask", challenge)
                if (
                    head["op"] in ("hello", "own")
                    and connection.getpeername()[0] != connection.getsockname()[0]
                ):
                    return  # they name processes and memory of this node
                self._talk(connection, head, bytes.fromhex(head["nonce"]))
            finally:
                self._free.release()

    def _talk(self, connection: socket.socket, head: Head, nonce: bytes) -> None:
        side = b"answer"
        slot = None
        answer = Head()
        data = memoryview(b"")
        try:
            match head["op"]:
                case "own" | "copy":
                    slot = self._slot(head)
                    wire.send_head(connection, self._key, side, nonce, {})
                    side = b"taken"
                    manifest, payload = self._manifest(connection, head)
                    if slot:
                        self._take_copy(connection, head, manifest, payload, slot)
                        answer = {"processor_s": time.thread_time()}
                    else:
                        self._take_own(head, manifest, payload)
                case "hello":
                    self._add_uploader(int(head["epoch"]), int(head["pid"]))
                case "have":
                    with self._lock:
                        answer = {"held": [held.describe() for held in self._all()]}
                case "read":
                    data = self._read(str(head["name"]), int(head["from"]), int(head["bytes"]))
                case _:
                    raise Refused("no such question")
        except (Refused, Damaged, InputError) as error:
            answer = {"refused": str(error)[:300]}
        finally:
            if slot:
                slot.arriving = False
        wire.send_head(connection, self._key, side, nonce, answer)
        connection.sendall(data)

    def _add_uploader(self, epoch: int, pid: int) -> None:
        with self._lock:
            check_epoch(epoch, self.epoch)
            if self.epoch == self._ended:
                raise Refused("its ranks were ended")
            self._uploaders.append(os.pidfd_open(pid))

    def _all(self) -> list[Held]:
        copies = []
        for slots in self._copies.values():
            for slot in slots:
                if slot.held:
                    copies.append(slot.held)
        return [*self._own.values(), *copies]

    def _manifest(self, connection: socket.socket, head: Head) -> tuple[Manifest, bytes]:
        payload = wire.receive(connection, int(head["length"]))
        if hex_digest(payload) != head["sha256"]:
            raise Refused("the description is not what was sent")
        manifest = parse_manifest(payload)
        about = (manifest.run, manifest.rank, manifest.step, manifest.attempt, manifest.length)
        if about != (self._run, head["rank"], head["step"], head["attempt"], head["bytes"]):
            raise Refused("the description belongs to another shard")
        return manifest, payload

    def _take_own(self, head: Head, manifest: Manifest, payload: bytes) -> None:
        index = int(head["memory"])
        descriptor = self._memories[int(head["local"])][index]
        # Of a rank that writes nothing, as a second replica may, the memory is empty and cannot be
        # mapped.
        size = os.fstat(descriptor).st_size
        view = memoryview(mmap.mmap(descriptor, size) if manifest.length else b"")[
            : manifest.length
        ]
        held = Held(
            manifest=manifest,
            payload=payload,
            data=view,
            start=int(head["start"]),
            memory=index,
        )
        with self._lock:
            self._own[manifest.rank, index] = held

    def _take_copy(
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
            slot.held = Held(
                manifest=manifest,
                payload=payload,
                data=data,
                start=int(head["start"]),
            )

    def _slot(self, head: Head) -> Slot | None:
        """For a copy: of the two the one that is not needed, emptied and large enough. Raises
        Refused.
        """
        rank = int(head["rank"])
        step = int(head["step"])
        length = int(head["bytes"])
        keep = tuple(head.get("keep", ()))
        if not 0 < int(head["length"]) <= MAX_MANIFEST_BYTES or length < 0:
            raise Refused("a description longer than any")
        with self._lock:
            check_epoch(int(head["epoch"]), self.epoch)
            if head["op"] == "own":
                return None
            slots = self._copies.setdefault(rank, [Slot() for _ in range(SLOTS)])
            slot = giving_way(slots, (step, str(head["attempt"])), keep)
            if len(slot.room) < length:
                slot.held = None
                slot.room = memoryview(b"")
                coming_free = self._give_up_of_other_nodes(rank, keep)
                check_room(
                    rank,
                    length,
                    max(1, sum(len(each.room) < length for each in slots) - coming_free),
                )
                # Private: what is shared takes half as long again to touch.
                slot.room = memoryview(
                    mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                )
            slot.held = None
            slot.arriving = True
        return slot

    def _give_up_of_other_nodes(self, rank: int, keep: tuple[Any, ...]) -> int:
        """A replacement in another domain changes whose copies come here. Those of the former
        neighbour that are older than `keep` are no longer needed; how many others there are. With
        the lock.
        """
        size = len(self._memories)
        theirs = []
        for other, slots in self._copies.items():
            if other // size != rank // size:
                for s in slots:
                    theirs.append(s)
        for slot in theirs:
            if not slot.arriving and (not slot.held or slot.held.version[0] < keep[0]):
                slot.held = None
                slot.room = memoryview(b"")
        return sum(bool(slot.room) for slot in theirs)

    def _read(self, name: str, start: int, length: int) -> memoryview:
        with self._lock:
            for held in self._all():
                manifest = held.manifest
                whole = memoryview(held.payload) if name == manifest.name else None
                for index, stretch in enumerate(manifest.stretches()):
                    if name == manifest.shard_name(index):
                        whole = held.data[stretch]
                if whole is not None:
                    if not 0 <= start <= start + length <= len(whole):
                        raise Refused(f"{name} has {len(whole)} bytes")
                    return whole[start : start + length]
        raise Refused(f"{name} is not here")


def check_epoch(asked: int, own: int) -> None:
    """Raises Refused."""
    if asked != own:
        raise Refused(f"the message is from epoch {asked}, and this node is in epoch {own}")


def giving_way(slots: Sequence[Slot], version: Version, keep: tuple[Any, ...]) -> Slot:
    """Of a rank's two the one that `version` may be written to; that of version `keep` stays.
    Raises Refused.
    """
    if any(slot.held and slot.held.version == version for slot in slots):
        raise Refused(f"a copy of step {version[0]} is there already")
    free = [
        slot
        for slot in slots
        if not slot.arriving and not (slot.held and slot.held.version == keep)
    ]
    if not free:
        raise Refused("another copy of this rank is arriving")
    # The older of two that are complete: the other may be what a neighbour needs in a moment.
    return min(free, key=lambda slot: slot.held.version[0] if slot.held else -1)


def check_room(rank: int, length: int, count: int) -> None:
    """For `count` more copies of this size. Raises Refused with the arithmetic."""
    free = free_bytes()
    needed = count * length
    if needed > free:
        each = f"{count} copies of {length / 1e6:.0f} MB"
        raise Refused(
            f"rank {rank} needs {each}, {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free"
        )


def free_bytes() -> int:
    """What this container may still take; all of it where no limit can be read."""
    free: list[int] = []
    with suppress(OSError, ValueError):  # no limit: "max"
        most, used = (int(path.read_text()) for path in GROUPS)
        free.append(most - used)
    with suppress(OSError, ValueError, StopIteration):
        lines = MEMINFO.read_text().splitlines()
        free.append(
            int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10
        )
    return min(free, default=1 << 62)
