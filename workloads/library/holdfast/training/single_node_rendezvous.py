"""The rendezvous of a job on one node: nobody to wait for, and a store that only this machine can reach.

The c10d rendezvous would wait up to 0.3 s so that nodes do not come all
at once, and would open two ports on every network.
"""

# Why it is so: infra/decisions/0085.

import socket
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

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
