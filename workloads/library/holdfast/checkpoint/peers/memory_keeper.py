"""The memory of a node: the staging memories of its own ranks, and the copies that uploaders of a
neighbor hand over.

A keeper is a thread of the launcher, which outlives its ranks. It has room for two copies of each
rank of the neighbor: a complete one and one that arrives. The sender names the version that every
node has complete; that one stays, the other is overwritten. A copy is compared with its digests
before it counts, and is never replaced by another of the same version. With a folder on a local
disk the copies are there, and so are two of each own rank: a staging memory is then free as soon as
its shard was copied.
"""

import mmap
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest, hex_digest
from holdfast.checkpoint.format.decoding import MAX_MANIFEST_BYTES, parse_manifest
from holdfast.checkpoint.peers import protocol
from holdfast.checkpoint.peers.protocol import Head
from holdfast.checkpoint.peers.rooms import (
    FileRoom,
    MemoryRoom,
    Room,
    free_bytes,
    free_disk_bytes,
)
from holdfast.checkpoint.peers.slots import (
    Refused,
    Slot,
    StoredShard,
    check_epoch,
    check_room,
    choose_slot,
    get_step,
    make_slots,
)
from holdfast.support.errors import InputError

MOST_CONNECTIONS = 256
ACCEPT_PAUSE_S = 0.1


class Keeper:
    """Serves the memory of a node over TCP, in threads of the launcher."""

    def __init__(
        self,
        run: str,
        memories: list[list[int]],
        folder: Path | None = None,
    ) -> None:
        """Listens on a free port. `memories`: descriptors of the staging memories of each local
        rank. `folder`: where copies are kept; None: in memory.
        """
        self._folder = folder
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
        """Slots for copies of the neighbor's shards, by rank."""
        self._spooled: dict[int, list[Slot]] = {}
        """Slots in the folder for own shards, by local rank."""
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
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Of this one connection, or of a process that has no descriptor left for a moment.
                time.sleep(ACCEPT_PAUSE_S)
                continue
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
                is_local_question = head["op"] in ("hello", "own", "spool")
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
                case "own" | "copy" | "spool":
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
                        self._fill_slot(
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
                    copies_first = bool(head.get("copies_first"))
                    data = self._find_bytes(
                        name, start, int(head["bytes"]), copies_first=copies_first
                    )
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
        for slots in (*self._copies.values(), *self._spooled.values()):
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

    def _fill_slot(
        self,
        connection: socket.socket,
        head: Head,
        manifest: Manifest,
        payload: bytes,
        slot: Slot,
    ) -> None:
        failpoint("peer.receive")
        room = slot.room
        assert room
        if head["op"] == "spool":
            self._copy_to_folder(head, manifest, room)
        else:
            _receive_copy(connection, manifest, room)
        with self._lock:
            # Ranks of a later epoch may have written to the staging memory meanwhile.
            check_epoch(int(head["epoch"]), self.epoch)
            slot.shard = StoredShard(
                manifest=manifest,
                payload=payload,
                data=room.data[: manifest.length],
                start=int(head["start"]),
            )

    def _copy_to_folder(self, head: Head, manifest: Manifest, room: Room) -> None:
        """Copies an own shard from its staging memory to the folder."""
        assert isinstance(room, FileRoom)
        memories = self._memories[int(head["local"])]
        descriptor = memories[int(head["memory"])]
        room.copy_from(descriptor, manifest.length)

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
            if head["op"] == "spool":
                if self._folder is None:
                    raise Refused("this node has no folder for copies")
                slots = self._spooled.setdefault(int(head["local"]), make_slots())
                slot = choose_slot(slots, version, keep)
                remaining = 0
            else:
                slots = self._copies.setdefault(rank, make_slots())
                slot = choose_slot(slots, version, keep)
                remaining = self._drop_former_copies(rank, keep)
            if slot.room is None or slot.size < length:
                slot.release()
                too_small = sum(candidate.size < length for candidate in slots)
                # Those that remain become free while this neighbor's copies arrive.
                slot.room = self._make_room(rank, length, max(1, too_small - remaining))
            slot.shard = None
            slot.arriving = True
        return slot

    def _make_room(self, rank: int, length: int, count: int) -> Room:
        """Makes room for a copy, and checks that there is some for `count`. Raises Refused."""
        if self._folder is None:
            check_room(rank, length, count, free_bytes())
            return MemoryRoom(length)
        try:
            check_room(rank, length, count, free_disk_bytes(self._folder))
            return FileRoom(self._folder, length)
        except OSError as error:
            raise Refused(f"{self._folder} has no room for rank {rank}: {error}") from error

    def _drop_former_copies(self, rank: int, keep: tuple[Any, ...]) -> int:
        """Drops copies of a former neighbor that are older than `keep`.

        A replacement in another failure domain, and another size of the gang, change whose copies
        come here. Returns how many copies of former neighbors remain. Caller holds the lock.
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
                if slot.shard is None or get_step(slot) < keep[0]:
                    slot.release()
                remaining += slot.size > 0
        return remaining

    def _find_bytes(
        self,
        name: str,
        start: int,
        length: int,
        *,
        copies_first: bool,
    ) -> memoryview:
        with self._lock:
            shards = [*self._shards()]
            if copies_first:
                # The next version may have been staged where this one was.
                shards.sort(key=lambda shard: shard.memory)
            for shard in shards:
                data = shard.find_object(name)
                if data is None:
                    continue
                if not 0 <= start <= start + length <= len(data):
                    raise Refused(f"{name} has {len(data)} bytes")
                return data[start : start + length]
        raise Refused(f"this node does not hold {name}")


def _receive_copy(connection: socket.socket, manifest: Manifest, room: Room) -> None:
    is_damaged = False
    # Read to the end, even after a damaged stretch: a sender that is interrupted would not read the
    # reason.
    for shard, stretch in zip(manifest.shards, manifest.stretches(), strict=True):
        if room.receive(stretch, connection.recv_into) != shard.crc32c:
            is_damaged = True
    if is_damaged:
        raise Refused(f"rank {manifest.rank}: the bytes that came are not those that were sent")


def _is_from_this_node(connection: socket.socket) -> bool:
    peer = connection.getpeername()[0]
    return peer == connection.getsockname()[0]
