"""Where the agents of a job meet: torchrun's c10d rendezvous, with the causes of failure kept
apart.

A first node that is not up yet is waited for, one that never comes is worth another start, and a
port of this very node that something else holds is bad input, because another start would find it
again. A job on one node has none to wait for, and a store that only this machine can reach: the
c10d rendezvous would wait up to 0.3 s so that nodes do not come all at once, and would open two
ports on every network.
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
    client_store,
    join_key,
    loopback_store,
)
from holdfast.training.trainer.config import TrainConfig

# As long as agents that have met wait for the last of them: nodes of a gang pull large images at
# different speeds.
RENDEZVOUS_S = 600.0
_POLL_S = 0.5
_ANSWER_S = 5.0


def rendezvous_handler(config: TrainConfig) -> RendezvousHandler:
    """How this agent finds the others. Raises RendezvousError where the first node does not come,
    InputError where this one is it and cannot open the port.
    """
    if config.nodes == 1:
        use_loopback()
        return SingleNodeRendezvous(LOOPBACK, 0, 0, 1, config.run, math.ceil(config.peer_timeout_s))
    host, port = config.first_node
    named = is_named(host, socket.gethostname())
    ours = named or is_local(host)
    if not ours:
        _wait_for(host, port)
    try:
        store = _store(config, ours=ours)
    except (DistError, RuntimeError, OSError) as error:
        if not ours:
            raise RendezvousConnectionError(
                f"{host}:{port} does not let this node in: {error}"
            ) from error
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
    # The ranks' store as well: torch would open one more, on every network and without a gate.
    handler._shared_tcp_store_server = store  # pyright: ignore[reportPrivateUsage]
    handler._bootstrap_store_info = RendezvousStoreInfo(LOOPBACK, store.port)  # pyright: ignore[reportPrivateUsage]
    # No node joins a gang that is complete, and torch's own question never returns when the first
    # node went silent.
    handler.num_nodes_waiting = lambda: 0
    return handler


def _store(config: TrainConfig, *, ours: bool) -> TCPStore:
    """Hosted here, or of the first node."""
    key = join_key(config.run)
    timeout = timedelta(seconds=config.peer_timeout_s)
    if ours:
        with contextlib.suppress(OSError):  # another agent on this machine has opened it
            return Gate(config.first_node[1], key, timeout=timeout).store
    return client_store(Tunnel(config.first_node, key).port, timeout)


def is_named(host: str, hostname: str) -> bool:
    """Whether `host` is the name of this pod in its service. torch would ask the DNS, once; the
    record of a new pod may come later than its process, and then no process would open the place.
    """
    pod, dot, _ = host.partition(".")
    return bool(dot) and not pod.isdecimal() and pod == hostname.partition(".")[0]


def is_local(host: str) -> bool:
    """Whether `host` is this machine; a name that cannot be looked up yet is another's."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0))
                return True
    return False


def _wait_for(host: str, port: int) -> None:
    logs.info("rendezvous", f"waiting for the first node at {host}:{port}")
    until = time.monotonic() + RENDEZVOUS_S
    while True:
        try:
            socket.create_connection((host, port), timeout=_ANSWER_S).close()
            return
        except OSError as error:  # no such name, or no listener, yet
            if time.monotonic() > until:
                raise RendezvousConnectionError(
                    f"{host}:{port} did not answer in {RENDEZVOUS_S:g} s"
                ) from error
        time.sleep(_POLL_S)


def use_loopback() -> None:
    """gloo would look the host's name up, which fails on machines without a network."""
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


class SingleNodeRendezvous(StaticTCPRendezvous):
    """torch's own, with a store that only this machine can reach."""

    def next_rendezvous(self) -> RendezvousInfo:
        self._store = store = loopback_store(self.timeout)
        return RendezvousInfo(
            PrefixStore("agent", store), 0, 1, RendezvousStoreInfo(LOOPBACK, store.port)
        )
