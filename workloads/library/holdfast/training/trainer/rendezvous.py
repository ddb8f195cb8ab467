"""Rendezvous of a job's agents: torchrun's c10d rendezvous, which tells causes of failure apart.

A node waits for a first node that is not up yet. One that never comes is worth a retry. A port of
this node that another process holds is bad input, because a retry would meet it again. A job on one
node uses a store that only this machine can reach: the c10d rendezvous would add up to 0.3 s of
jitter and open two ports on every network.
"""

# Why it is so: infra/decisions/0085.

import contextlib
import math
import os
import socket
import time
from datetime import timedelta

from torch.distributed import DistError, PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from holdfast.runtime import logs
from holdfast.support.errors import InputError
from holdfast.training.tcp_gate import (
    LOOPBACK,
    Gate,
    Tunnel,
    check_torch,
    connect_store,
    host_loopback_store,
    join_key,
)
from holdfast.training.trainer.config import TrainConfig

# The same time that torch's agents wait for the last node: nodes pull large images at different
# speeds.
RENDEZVOUS_S = 600.0
_POLL_S = 0.5
_ANSWER_S = 5.0


def rendezvous_handler(config: TrainConfig) -> RendezvousHandler:
    """Returns the handler by which this agent finds the others.

    Raises RendezvousError if the first node does not come, and InputError if this is the first node
    and it cannot open the port, or if PyTorch is too old.
    """
    check_torch()
    if config.nodes == 1:
        use_loopback()
        return SingleNodeRendezvous(
            LOOPBACK,
            0,
            0,
            1,
            config.run,
            math.ceil(config.peer_timeout_s),
        )
    host, port = config.first_node
    is_first_node = is_named(host, socket.gethostname()) or is_local(host)
    if not is_first_node:
        _wait_for(host, port)
    try:
        store = _open_store(config, host_it=is_first_node)
    except (DistError, RuntimeError, OSError) as error:
        if not is_first_node:
            raise RendezvousConnectionError(f"{host}:{port} rejected this node: {error}") from error
        raise InputError(
            "the rendezvous cannot be opened",
            got=f"{config.rendezvous}: {error}",
            allowed="an address of this job's first node with a free port",
            fix="another port in --rendezvous",
        ) from error
    backend = C10dRendezvousBackend(store, config.run)
    parameters = RendezvousParameters(
        "c10d", config.rendezvous, config.run, config.nodes, config.nodes
    )
    handler = create_handler(store, backend, parameters)
    # The ranks use this store too: torch would open one more, on every network and without a gate.
    handler._shared_tcp_store_server = store  # pyright: ignore[reportPrivateUsage]
    handler._bootstrap_store_info = RendezvousStoreInfo(LOOPBACK, store.port)  # pyright: ignore[reportPrivateUsage]
    # No node joins a gang that is complete, and torch's own question never returns when the first
    # node went silent.
    handler.num_nodes_waiting = lambda: 0
    return handler


def _open_store(config: TrainConfig, *, host_it: bool) -> TCPStore:
    """Hosts the store on this node, or connects to the one of the first node."""
    key = join_key(config.run)
    timeout = timedelta(seconds=config.peer_timeout_s)
    if host_it:
        _, port = config.first_node
        with contextlib.suppress(OSError):  # another agent on this machine has opened it
            return Gate(port, key, timeout=timeout).store
    tunnel = Tunnel(config.first_node, key)
    return connect_store(tunnel.port, timeout)


def is_named(host: str, hostname: str) -> bool:
    """Returns whether `host` is the name of this pod in its service.

    torch would query DNS once. The record of a new pod may appear after its process, and then no
    process would host the store.
    """
    pod, dot, _ = host.partition(".")
    if not dot or pod.isdecimal():
        return False
    own_name, _, _ = hostname.partition(".")
    return pod == own_name


def is_local(host: str) -> bool:
    """Returns whether `host` is this machine. A name that does not resolve yet is another one's."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0))
                return True
    return False


def _wait_for(host: str, port: int) -> None:
    logs.info("rendezvous", f"waiting for the first node at {host}:{port}")
    deadline = time.monotonic() + RENDEZVOUS_S
    while True:
        try:
            socket.create_connection((host, port), timeout=_ANSWER_S).close()
            return
        except OSError as error:  # no such name, or no listener, yet
            if time.monotonic() > deadline:
                raise RendezvousConnectionError(
                    f"{host}:{port} did not answer in {RENDEZVOUS_S:g} s"
                ) from error
        time.sleep(_POLL_S)


def use_loopback() -> None:
    """Makes gloo use the loopback interface: it would resolve the host's name, which fails on
    machines without a network.
    """
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


class SingleNodeRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous, with a store that only this machine can reach."""

    def next_rendezvous(self) -> RendezvousInfo:
        store = host_loopback_store(self.timeout)
        self._store = store
        return RendezvousInfo(
            PrefixStore("agent", store),
            0,
            1,
            RendezvousStoreInfo(LOOPBACK, store.port),
        )
