"""The settings of a training run, checked before any process starts."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.support.errors import InputError
from holdfast.support.object_names import checked_run
from holdfast.support.values import between
from holdfast.training.trainer.model import ModelConfig
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

DEVICES = ("auto", "cpu", "cuda")
SEEDS = (-(2**63), 2**63 - 1)  # what torch takes
# IPv6 in brackets: its own colons would be read as the one before the port.
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:]+\]|[^\s:/]+):\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings that rigid and elastic training share."""

    checkpoints: str
    """file:///dir, a path, or gs://bucket/prefix."""
    run: str = "demo"
    data: Path | None = None
    """Folder of text files. None stands for Python's own sources."""
    steps: int = 300
    seed: int = 0
    learning_rate: float = 1e-3
    model: ModelConfig = field(default_factory=ModelConfig)
    device: str = "auto"
    window_s: float = DEFAULT_WINDOW.pod_s
    events: Path | None = None
    report_every: int = 5
    """Steps between two `window` events."""

    def __post_init__(self) -> None:
        checked_run(self.run)
        self.check_range("steps", "report_every", low=1)
        between("seed is out of range", self.seed, *SEEDS)
        if self.device not in DEVICES:
            raise InputError(
                "unknown device",
                got=self.device,
                allowed=", ".join(DEVICES),
                fix="--device auto",
            )

    def check_range(self, *names: str, low: float, high: float = math.inf) -> None:
        for name in names:
            between(
                f"{name} is out of range",
                getattr(self, name),
                low,
                high,
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Training):
    every: int | str = 50
    """Checkpoint interval: steps, "30s" or "auto"."""
    keep: int = 3
    batch: int = 16
    """Samples of one step over all ranks; a restart with another number of ranks keeps it."""
    ranks: int = 2
    """Processes on this node."""
    nodes: int = 1
    rendezvous: str = ""
    """HOST:PORT that all nodes reach; needed for more than one node."""
    peer_timeout_s: float = 120.0
    """Seconds that a collective or the rendezvous waits for a silent peer. A machine that lost its
    power closes no connection, and torch alone would wait half an hour.
    """
    deadline: float | None = None
    """Unix time at which the node is known to end; the run stops before it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range("keep", "batch", "ranks", "nodes", "peer_timeout_s", low=1)
        # Not rounded: another global batch is another training, and the loss curve would not show
        # why.
        if self.batch % self.world_size:
            next_multiple = math.ceil(self.batch / self.world_size) * self.world_size
            raise InputError(
                "the batch cannot be divided evenly",
                got=f"batch {self.batch} over {self.world_size} ranks",
                allowed=f"a multiple of {self.world_size}",
                fix=f"--set batch={next_multiple}, or another --ranks",
            )
        between(
            "grace period in seconds is out of range",
            self.window_s,
            WINDOW_MARGIN_S + 0.1,
            math.inf,
            fix=f"--window {DEFAULT_WINDOW.pod_s}, the grace period of ordinary Spot pods",
        )
        needs_rendezvous = self.nodes > 1 or self.rendezvous
        if needs_rendezvous and not self._has_valid_rendezvous():
            raise InputError(
                "several nodes need a rendezvous address",
                got=f"--nodes {self.nodes} with --rendezvous {self.rendezvous or '(nothing)'}",
                allowed="HOST:PORT that all nodes can reach, ports 1 to 65535",
                fix="--rendezvous <first pod's name>:29500",
            )

    def _has_valid_rendezvous(self) -> bool:
        if not _ENDPOINT.fullmatch(self.rendezvous):
            return False
        _, port = self.first_node
        return 0 < port < 65536

    @property
    def first_node(self) -> tuple[str, int]:
        """Host and port of the rendezvous of several nodes."""
        host, _, port = self.rendezvous.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def world_size(self) -> int:
        return self.ranks * self.nodes
