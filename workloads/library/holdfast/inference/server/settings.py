"""The settings of a server, few and checked; everything else follows from them."""

from dataclasses import dataclass

from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S
from holdfast.vocabulary.serving import (
    KEEP_ALIVE_S,
    LEAST_ACCEPT_S,
    PORT,
    DrainBudget,
    drain_budget,
)

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    model: str = "model"
    """The name of the model in URLs."""
    host: str = "0.0.0.0"  # a pod's only address; network policies decide who reaches it
    port: int = PORT
    """The port; 0 takes a free one, which the first log line names."""
    window_s: float = float(DEFAULT_WINDOW.pod_s)
    """The grace period of the pool, after the notice."""
    longest_request_s: float = 0.0
    """The maximum time of a request with its response; 0 for as long as the window allows."""
    body_bytes: int = 8 * MIB
    batch_items: int = 32
    queue_requests: int = 1024
    connections: int = 4096
    """The maximum number of connections; above it, idle ones are closed for new ones."""
    idle_s: float = float(KEEP_ALIVE_S)
    """The maximum time that a connection waits for a request; a proxy's must be shorter."""

    def __post_init__(self) -> None:
        shortest_s = WINDOW_MARGIN_S + LEAST_ACCEPT_S + 1.0
        between("the window is out of range", self.window_s, shortest_s, 86_400.0)
        longest_s = self.budget.longest_request_s
        if not 0.0 <= self.longest_request_s <= longest_s:
            raise InputError(
                "the longest request does not fit in the grace period",
                got=f"{self.longest_request_s:g} s",
                allowed=f"at most {longest_s:g} s of a window of {self.window_s:g} s",
                fix="lower --longest-request, or serve on a pool with a longer grace period",
            )
        if not self.model or "/" in self.model:
            raise InputError(
                "the model has no name in URLs",
                got=self.model or "(nothing)",
                allowed="a name without /, which is one part of /v2/models/NAME/infer",
                fix="give another --name",
            )
        between("the port is out of range", self.port, 0, 65_535)
        between("the largest body is out of range", self.body_bytes, 1, 1024 * MIB)
        between("the items of a batch are out of range", self.batch_items, 1, 4096)
        between("the queue is out of range", self.queue_requests, 1, 1_000_000)
        between("the connections are out of range", self.connections, 1, 1_000_000)
        between("the idle time is out of range", self.idle_s, 0.1, 86_400.0)

    @property
    def budget(self) -> DrainBudget:
        return drain_budget(self.window_s)

    @property
    def request_s(self) -> float:
        return self.longest_request_s or self.budget.longest_request_s
