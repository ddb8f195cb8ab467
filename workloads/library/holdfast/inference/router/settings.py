"""The settings of a router, few and checked."""

from dataclasses import dataclass

from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S
from holdfast.vocabulary.serving import (
    KEEP_ALIVE_S,
    LEAST_ACCEPT_S,
    ROUTER_PORT,
    SILENT_HOLD_S,
    DrainBudget,
    drain_budget,
)

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSettings:
    servers: str = ""
    """Servers as HOST:PORT, separated by commas; every address of a name is a server."""
    endpoints_file: str = ""
    """The file of `holdfast serve endpoints`, instead of `servers`."""
    host: str = "0.0.0.0"  # a pod's only address; network policies decide who reaches it
    port: int = ROUTER_PORT
    """The port; 0 takes a free one, which the first log line names."""
    health_path: str = "/health"
    """The path that a server answers with 200 while it takes new requests."""
    health_port: int = 0
    """The port of the health path; 0: the port of requests, or that of the endpoints file."""
    window_s: float = float(DEFAULT_WINDOW.pod_s)
    """The grace period of the router, after the notice."""
    streams: int = 1000
    """The maximum number of requests at a time, with those that wait for a server."""
    body_bytes: int = 8 * MIB
    stream_bytes: int = 4 * MIB
    """The maximum memory of a stream's tokens, and of a text that is not streamed."""
    connections: int = 4096
    idle_s: float = float(KEEP_ALIVE_S)
    """The maximum time that a connection waits for a request, or for its client to read."""
    hold_s: float = 30.0
    """The time that a request waits for a ready server, at its start or at a seam."""
    comment_s: float = 15.0
    """The time between two comments to the client of a stream that waits."""
    connect_s: float = 1.0
    first_token_s: float = 120.0
    """The silence that counts as a hang before the first token."""
    token_s: float = 10.0
    """The silence that counts as a hang between two tokens."""
    hang_s: float = 1.0
    """The silence of a server on all its streams and its health path that counts as a hang."""
    probe_s: float = 0.5
    """The time between two probes of a server."""
    drain_s: float = 3.0
    """The time that streams stay with a server that has become unready, before they move."""

    def __post_init__(self) -> None:
        if bool(self.servers) == bool(self.endpoints_file):
            raise InputError(
                "the router needs one source of servers",
                got=f"servers {self.servers!r}, endpoints file {self.endpoints_file!r}",
                allowed="HOST:PORT,... or the path of an endpoints file",
                fix="give --servers or --endpoints-file",
            )
        shortest_s = WINDOW_MARGIN_S + LEAST_ACCEPT_S + 1.0
        between("the window is out of range", self.window_s, shortest_s, 86_400.0)
        between("the port is out of range", self.port, 0, 65_535)
        between("the health port is out of range", self.health_port, 0, 65_535)
        between("the streams are out of range", self.streams, 1, 100_000)
        between("the largest body is out of range", self.body_bytes, 1, 64 * MIB)
        between("the memory of a stream is out of range", self.stream_bytes, 1024, 256 * MIB)
        between("the connections are out of range", self.connections, 1, 1_000_000)
        for name in (
            "idle_s",
            "hold_s",
            "comment_s",
            "connect_s",
            "first_token_s",
            "token_s",
            "hang_s",
            "probe_s",
        ):
            between(f"{name} is out of range", getattr(self, name), 0.05, 86_400.0)
        between("drain_s is out of range", self.drain_s, 0.0, 86_400.0)
        if not self.health_path.startswith("/"):
            raise InputError(
                "the health path must begin with a slash",
                got=self.health_path,
                allowed="a path such as /health",
                fix="correct --health-path",
            )

    @property
    def budget(self) -> DrainBudget:
        return drain_budget(self.window_s)

    @property
    def silent_hold_s(self) -> float:
        """The time that a request waits if its client gets nothing before the response."""
        return min(self.hold_s, SILENT_HOLD_S)

    @property
    def request_s(self) -> float:
        """The time that a request has after the router stops accepting."""
        return self.budget.longest_request_s
