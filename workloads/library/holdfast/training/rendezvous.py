"""Where the agents of a job meet: torchrun's c10d rendezvous, with the causes of failure kept apart.

A first node that is not up yet is waited for, one that never comes is worth another start, and a port of this very node
that something else holds is bad input, because another start would find it again. A job on one node has nobody to wait
for, and a store that only this machine can reach: the c10d rendezvous would wait up to 0.3 s so that nodes do not come
all at once, and would open two ports on every network.
"""

# Why it is so: infra/decisions/0085.

import hmac
import os
import socket
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from holdfast.checkpoint.parts import signing_key
from holdfast.contract.errors import InputError
from holdfast.runtime import logs
from holdfast.training.config import TrainConfig

# Why it is so: infra/decisions/0085, 0087, 0095.

# As long as agents that have met wait for the last of them: nodes of a gang pull large images at different speeds.
RENDEZVOUS_S = 600.0
_POLL_S = 0.5
_ANSWER_S = 5.0


def rendezvous_handler(config: TrainConfig) -> RendezvousHandler:
    """How this agent finds the others. Raises RendezvousError where the first node does not come, InputError where this
    one is it and cannot open the port."""
    if config.nodes == 1:
        use_loopback()
        return SingleNodeRendezvous(config.run, timeout_s=config.peer_timeout_s)
    host, port = config.first_node
    named = is_named(host, socket.gethostname())
    ours = named or is_local(host)
    if not ours:
        _wait_for(host, port)
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=config.rendezvous,
        run_id=join_id(config.run),
        min_nodes=config.nodes,
        max_nodes=config.nodes,
        read_timeout=round(config.peer_timeout_s),
        is_host=named or None,  # None: torch compares addresses
    )
    try:
        handler = get_rendezvous_handler(parameters)
    except RendezvousError as error:
        if not ours:
            raise
        raise InputError(
            "the rendezvous cannot be opened",
            got=f"{config.rendezvous}: {error.__cause__ or error}",
            allowed="an address of this job's first node with a free port",
            fix="another port in --rendezvous",
        ) from error
    # Nobody joins a gang that is complete, and torch's own question never returns when the first node went silent.
    handler.num_nodes_waiting = lambda: 0
    return handler


def join_id(run: str) -> str:
    """The name under which agents of `run` look for each other. With a key only who has it can compute the name.

    It keeps strangers out of the gang, not out of the store behind the port: network policies do that."""
    key = signing_key()
    return hmac.new(key, f"join {run}".encode(), "sha256").hexdigest() if key else run


def is_named(host: str, hostname: str) -> bool:
    """Whether `host` is the name of this pod in its service. torch would ask the DNS, once; the record of a
    new pod may come later than its process, and then nobody would open the place."""
    pod, dot, _ = host.partition(".")
    return bool(dot) and not pod.isdecimal() and pod == hostname.partition(".")[0]


def is_local(host: str) -> bool:
    """Whether `host` is this machine; a name that cannot be looked up yet is another's."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_ours(family, address[0]) for family, _, _, _, address in found)


def _ours(family: int, address: str | int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _wait_for(host: str, port: int) -> None:
    logs.info("rendezvous", f"waiting for the first node at {host}:{port}")
    until = time.monotonic() + RENDEZVOUS_S
    while True:
        try:
            socket.create_connection((host, port), timeout=_ANSWER_S).close()
            return
        except OSError as error:  # no such name yet, nobody listens yet
            if time.monotonic() > until:
                raise RendezvousConnectionError(f"{host}:{port} did not answer in {RENDEZVOUS_S:g} s") from error
        time.sleep(_POLL_S)


def use_loopback() -> None:
    """gloo would look the host's name up, which fails on machines without a network."""
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


LOOPBACK = "127.0.0.1"


class SingleNodeRendezvous(RendezvousHandler):
    def __init__(self, run: str, *, timeout_s: float) -> None:
        self._run, self._timeout = run, timedelta(seconds=timeout_s)
        self._closed = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Called once: launch.py allows no restarts within a pod."""
        listener = socket.create_server((LOOPBACK, 0))  # the kernel picks a free port
        port = listener.getsockname()[1]
        self._server = TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=self._timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return RendezvousInfo(PrefixStore("agent", self._server), 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "single-node"

    def get_run_id(self) -> str:
        return self._run

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        # Anything else would make the agent restart its ranks to let a newcomer in.
        return 0

    def shutdown(self) -> bool:
        self._closed = True
        return True
