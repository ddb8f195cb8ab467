"""The process group of an epoch: a new one for each, in the same process, from a store that
outlives it.

Of a node that shares one state (node.py) each rank is in a group of its own with the ranks of that
number elsewhere.

Every member serves a store of its own from birth, behind a gate on the port above its control port;
the lead's is used, under the epoch's number. So an epoch needs nothing of a member that is gone.
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
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
# Public since torch 2.15.
_set_timeout = getattr(dist, "set_timeout", distributed_c10d._set_pg_timeout)  # pyright: ignore[reportPrivateUsage, reportDeprecated]


@contextlib.contextmanager
def opening(port: int) -> Generator[None]:
    """Raises InputError where the port is taken."""
    try:
        yield
    except OSError as error:
        raise InputError(
            "a port of the gang cannot be opened",
            got=f"port {port}: {str(error)[:120]}",
            allowed="two free ports for each place, its own and the one above",
            fix="another --port, the same for all places",
        ) from error


class Group:
    def __init__(
        self,
        addresses: tuple[Address, ...],
        me: Member,
        device: torch.device,
        *,
        key: bytes,
        beside_node: bool = False,
    ) -> None:
        """`key`: of the run's members. `beside_node`: the default group is the node's own, and
        stays. Raises InputError where the port is taken.
        """
        self._addresses = addresses
        self._me = me
        self._key = key
        self._connect_s = CONNECT_S
        self._sockets: set[_Descriptor] = set()
        """Of the group that is open."""
        self._tunnel: Tunnel | None = None
        """To the store of the lead."""
        self.device = device
        self._backend = BACKENDS[device.type]
        self._beside_node = beside_node
        self.handle: dist.ProcessGroup | None = None
        """For collectives; None where this member is alone."""
        port = addresses[me.index][1] + 1
        with opening(port):
            self._own = Gate(port, key, timeout=timedelta(seconds=self._connect_s)).store

    def open(self, epoch: Epoch, lag_s: float) -> None:
        """`lag_s`: how long its collectives wait for a member. Raises GroupLost."""
        rank = epoch.members.index(self._me)
        if len(epoch.members) == 1:
            return
        failpoint("gang.connect")
        try:
            with self._store_of(epoch.lead) as store:
                before = _sockets()
                self._connect(PrefixStore(f"epoch/{epoch.number}", store), epoch, rank)
                self._sockets = _sockets() - before
                _set_timeout(timedelta(seconds=lag_s), self.handle)
        # torch's store and group errors are RuntimeErrors
        except (RuntimeError, ValueError) as error:
            self.close()
            raise GroupLost(str(error)[:200]) from error

    def _connect(self, store: Store, epoch: Epoch, rank: int) -> None:
        # A member lost while the others connect is noticed only by the time limit: shorter than
        # that of a step.
        connect = timedelta(seconds=self._connect_s)
        store.set_timeout(connect)
        size = len(epoch.members)
        if self._beside_node:
            self.handle = _made_beside(
                self._backend, store, rank, size, connect, f"gang-{epoch.number}"
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
                timeout=connect,
            )
            self.handle = dist.group.WORLD
        dist.barrier(self.handle)

    @contextlib.contextmanager
    def _store_of(self, lead: Member) -> Generator[Store]:
        """For at most half as long again as torch's own limit.

        A client of torch's store waits without limit for an answer that has begun: a lead that is
        frozen while others connect would hold them for as long as it is.
        """
        if lead == self._me:
            yield self._own
            return
        host, port = self._addresses[lead.index]
        self._tunnel = Tunnel((host, port + 1), self._key)
        ending = threading.Timer(1.5 * self._connect_s, self._tunnel.close)
        ending.daemon = True
        ending.start()
        try:
            yield connect_store(self._tunnel.port, timedelta(seconds=self._connect_s))
        finally:
            ending.cancel()

    def abort(self) -> None:
        """Make the collective that is under way fail. From another thread."""
        group = self.handle
        if group is not None and "nccl" in self._backend:
            group.abort()
        # gloo has no abort, and its time limit is that of a slow member.
        ports = set()
        for _, port in self._addresses:
            for above in (0, 1):
                ports.add(port + above)
        for number, inode in self._sockets:
            _shut(number, inode, ports)

    def close(self) -> None:
        """In a thread of its own: with a peer that is gone it may never end."""
        group = self.handle
        self.handle = None
        if self._tunnel:
            self._tunnel.close()
        if group is None and (self._beside_node or not dist.is_initialized()):
            return

        def destroy() -> None:
            with contextlib.suppress(RuntimeError, ValueError):
                dist.destroy_process_group(group)

        destroying = threading.Thread(
            target=destroy,
            name="destroy-process-group",
            daemon=True,
        )
        destroying.start()
        destroying.join(DESTROY_S)


def _made_beside(
    backend: str,
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
) -> dist.ProcessGroup:
    """A group that knows nothing of the default one, whose ranks would be a part of it for torch's
    own new_group.
    """
    made, _ = distributed_c10d._new_process_group_helper(  # pyright: ignore[reportPrivateUsage]
        size, rank, [], backend, store, cast(Any, name), timeout=timeout
    )
    assert isinstance(made, dist.ProcessGroup)
    # As for any group; destroy_process_group looks for it.
    distributed_c10d._world.pg_group_ranks[made] = {each: each for each in range(size)}  # pyright: ignore[reportPrivateUsage]
    return made


def broadcast_json(
    value: Any,
    source: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
) -> Any:
    """JSON and not torch's objects: those are pickles, which run code. Raises GroupLost for what is
    none.
    """
    assert group
    data = json.dumps(value).encode() if group.rank() == source else b""
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    dist.broadcast(length, group=group, group_src=source)
    # As much memory is taken next, and a broken sum may be any number.
    if not 0 < int(length) <= MAX_JSON_BYTES:
        raise GroupLost(
            f"another process announces {int(length)} bytes, and at most {MAX_JSON_BYTES} are read"
        )
    buffer = torch.empty(int(length), dtype=torch.uint8, device=device)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, group=group, group_src=source)
    try:
        return json.loads(bytes(buffer.cpu().tolist()))
    except (ValueError, RecursionError) as error:
        raise GroupLost(f"another process sent no JSON: {error}") from error


_Descriptor = tuple[int, int]
"""Number and inode: the number may be another file's by the time that it is used."""


def _sockets() -> set[_Descriptor]:
    found: set[_Descriptor] = set()
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(path.name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(path.name), status.st_ino))
    return found


def _shut(number: int, inode: int, ports: set[int]) -> None:
    """A connection over the network, unless one of its ends is one of `ports`."""
    # closed, or only listening
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
        same = (
            found.family in (socket.AF_INET, socket.AF_INET6)
            and os.fstat(found.fileno()).st_ino == inode
        )
        if same and not {found.getsockname()[1], found.getpeername()[1]} & ports:
            found.shutdown(socket.SHUT_RDWR)
