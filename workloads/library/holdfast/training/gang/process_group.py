"""The process group of an epoch: a new one for each, in the same process, from a store that
outlives it.

If the ranks of a node share one state (node.py), each is in a group of its own with the same local
rank of the other nodes.

Every member hosts a store from its start, behind a gate on the port above its control port. An
epoch uses its lead's store, under the epoch's number, so it needs nothing of a lost member.
"""

import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    distributed_c10d,
)

from holdfast.checkpoint.failpoints import failpoint
from holdfast.support.errors import InputError
from holdfast.training.errors import GroupLost
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.tcp_gate import Gate, Tunnel, connect_store

CONNECT_S = 10.0
DESTROY_S = 3.0
MAX_JSON_BYTES = 1 << 28
BACKENDS = {
    "cpu": "gloo",
    "cuda": "cpu:gloo,cuda:nccl",
}
# Public since torch 2.15.
_set_timeout = getattr(dist, "set_timeout", distributed_c10d._set_pg_timeout)  # pyright: ignore[reportPrivateUsage, reportDeprecated]


@contextlib.contextmanager
def opening(port: int) -> Generator[None]:
    """Turns an OSError of the block into an InputError: the port is taken."""
    try:
        yield
    except OSError as error:
        raise InputError(
            "a port of the gang cannot be opened",
            got=f"port {port}: {str(error)[:120]}",
            allowed="two free ports for each member, its own and the one above",
            fix="another --port, the same for all members",
        ) from error


class Group:
    """Process group of this member: opened for an epoch, closed when the epoch ends."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        me: Member,
        device: torch.device,
        *,
        key: bytes,
        has_node_group: bool = False,
    ) -> None:
        """`key` is the join key of the run. `has_node_group` says that torch's default group is the
        node's and has to stay. Raises InputError if the port is taken.
        """
        self._addresses = addresses
        self._me = me
        self._key = key
        self._connect_s = CONNECT_S
        self._sockets: set[_Descriptor] = set()
        """Sockets of the open group."""
        self._tunnel: Tunnel | None = None
        """Tunnel to the store of the lead."""
        self.device = device
        self._backend = BACKENDS[device.type]
        self._has_node_group = has_node_group
        self.handle: dist.ProcessGroup | None = None
        """Group for collectives; None if this member is alone."""
        _, control_port = addresses[me.index]
        port = control_port + 1
        with opening(port):
            gate = Gate(port, key, timeout=timedelta(seconds=self._connect_s))
        self._own_store = gate.store

    def open(self, epoch: Epoch, lag_s: float) -> None:
        """Connects the members of `epoch`. Raises GroupLost.

        Collectives of the group wait `lag_s` seconds for a member.
        """
        rank = epoch.members.index(self._me)
        if len(epoch.members) == 1:
            return
        failpoint("gang.connect")
        try:
            with self._connect_to_store(epoch.lead) as store:
                sockets_before = _list_sockets()
                epoch_store = PrefixStore(f"epoch/{epoch.number}", store)
                self._connect(epoch_store, epoch, rank)
                self._sockets = _list_sockets() - sockets_before
                _set_timeout(timedelta(seconds=lag_s), self.handle)
        # torch's store and group errors are RuntimeErrors
        except (RuntimeError, ValueError) as error:
            self.close()
            raise GroupLost(str(error)[:200]) from error

    def _connect(
        self,
        store: Store,
        epoch: Epoch,
        rank: int,
    ) -> None:
        # Members notice a loss while they connect only by the time limit, so it is shorter than
        # that of a step.
        timeout = timedelta(seconds=self._connect_s)
        store.set_timeout(timeout)
        size = len(epoch.members)
        if self._has_node_group:
            self.handle = _create_separate_group(
                self._backend,
                store,
                rank,
                size,
                timeout,
                f"gang-{epoch.number}",
            )
        else:
            # torch counts the groups of a process and finds the others by that number. A try that
            # failed counts too, and members may have had different numbers of those: they would
            # never meet again.
            distributed_c10d._world.group_count = 0  # pyright: ignore[reportPrivateUsage]
            dist.init_process_group(
                self._backend,
                store=store,
                rank=rank,
                world_size=size,
                timeout=timeout,
            )
            self.handle = dist.group.WORLD
        dist.barrier(self.handle)

    @contextlib.contextmanager
    def _connect_to_store(self, lead: Member) -> Generator[Store]:
        """Yields the lead's store, for at most 1.5 times torch's own limit.

        A client of torch's store waits without limit for an answer that has started: a lead that is
        frozen while others connect would block them for as long.
        """
        if lead == self._me:
            yield self._own_store
            return
        host, port = self._addresses[lead.index]
        tunnel = Tunnel((host, port + 1), self._key)
        self._tunnel = tunnel
        timer = threading.Timer(1.5 * self._connect_s, tunnel.close)
        timer.daemon = True
        timer.start()
        try:
            yield connect_store(tunnel.port, timedelta(seconds=self._connect_s))
        finally:
            timer.cancel()

    def abort(self) -> None:
        """Makes the running collective fail. Called from another thread."""
        group = self.handle
        if group is not None and "nccl" in self._backend:
            group.abort()
        # gloo has no abort, and its time limit is that of a slow member.
        gang_ports = set[int]()
        for _, port in self._addresses:
            gang_ports.add(port)
            gang_ports.add(port + 1)
        for descriptor in self._sockets:
            _shut_down(descriptor, gang_ports)

    def close(self) -> None:
        """Destroys the group, for at most DESTROY_S: with a lost peer it may never end."""
        group = self.handle
        self.handle = None
        if self._tunnel:
            self._tunnel.close()
        has_default_group = dist.is_initialized() and not self._has_node_group
        if group is None and not has_default_group:
            return

        def destroy() -> None:
            with contextlib.suppress(RuntimeError, ValueError):
                dist.destroy_process_group(group)

        thread = threading.Thread(target=destroy, name="destroy-process-group", daemon=True)
        thread.start()
        thread.join(DESTROY_S)


def _create_separate_group(
    backend: str,
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
) -> dist.ProcessGroup:
    """Creates a group that is independent of the default one.

    torch's new_group would take its ranks for ranks of the default group.
    """
    group, _ = distributed_c10d._new_process_group_helper(  # pyright: ignore[reportPrivateUsage]
        size,
        rank,
        [],
        backend,
        store,
        cast(Any, name),
        timeout=timeout,
    )
    assert isinstance(group, dist.ProcessGroup)
    # destroy_process_group looks this up, as new_group would have set it.
    ranks = {group_rank: group_rank for group_rank in range(size)}
    distributed_c10d._world.pg_group_ranks[group] = ranks  # pyright: ignore[reportPrivateUsage]
    return group


def broadcast_json(
    value: Any,
    source: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
) -> Any:
    """Broadcasts `value` from rank `source` and returns it. Raises GroupLost if it is no JSON.

    torch's object collectives are not used: they unpickle, which runs code.
    """
    assert group
    data = json.dumps(value).encode() if group.rank() == source else b""
    length_tensor = torch.tensor(
        [len(data)],
        dtype=torch.int64,
        device=device,
    )
    dist.broadcast(length_tensor, group=group, group_src=source)
    length = int(length_tensor)
    # That much memory is allocated next, and a broken collective may return any number.
    if not 0 < length <= MAX_JSON_BYTES:
        raise GroupLost(
            f"another process announces {length} bytes, and at most {MAX_JSON_BYTES} are read"
        )
    buffer = torch.empty(length, dtype=torch.uint8, device=device)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, group=group, group_src=source)
    try:
        return json.loads(bytes(buffer.cpu().tolist()))
    except (ValueError, RecursionError) as error:
        raise GroupLost(f"another process sent no JSON: {error}") from error


_Descriptor = tuple[int, int]
"""Number and inode of a file descriptor: the number alone may belong to another file by now."""


def _list_sockets() -> set[_Descriptor]:
    """Returns the open sockets of this process."""
    descriptors: set[_Descriptor] = set()
    for path in Path("/dev/fd").iterdir():
        number = int(path.name)
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode):
                descriptors.add((number, status.st_ino))
    return descriptors


def _shut_down(descriptor: _Descriptor, gang_ports: set[int]) -> None:
    """Shuts down a network connection, unless one of its ends is a port of `gang_ports`."""
    number, inode = descriptor
    # An OSError means that the socket is closed, or only listening.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if os.fstat(connection.fileno()).st_ino != inode:
            return
        ports = {connection.getsockname()[1], connection.getpeername()[1]}
        if not ports & gang_ports:
            connection.shutdown(socket.SHUT_RDWR)
