"""The dials of a worker, few and checked; everything else follows from them."""

from dataclasses import dataclass

from holdfast.contract.errors import InputError
from holdfast.contract.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    micro_batch: int = 32
    """Items predicted, committed and acked together."""
    overlap: bool = True
    """Predict one micro-batch while the one before is committed: a kill then costs two at most, else one."""
    longest_batch_s: float = 1.0
    """A micro-batch is made smaller until its prediction lasts no longer: a drain waits for one."""
    fill_s: float = 0.05
    """How long a micro-batch that is not full waits for more."""
    pull_wait_s: float = 1.0
    """Longest wait of one pull; a drain may have to sit it out."""
    lease_s: float = 10.0
    """A killed worker's items come back after this."""
    window_s: float = float(DEFAULT_WINDOW.pod_s)
    """What the pool grants after the notice."""
    max_failures: int = 3
    """Processing failures of one item before it is dead. Evictions never count."""
    predict_timeout_s: float = 300.0
    """A micro-batch that takes longer is ended; its items are then tried in halves, the guilty one counted."""
    settle_s: float = 1.0
    """When the predicting process dies: whoever is still here after this was not evicted with it."""
    retry_delay_s: float = 1.0
    """A failed item waits this long for each failure so far: what failed for a moment gets a chance."""

    def __post_init__(self) -> None:
        _require(1 <= self.micro_batch <= 4096, "micro_batch", self.micro_batch, "1 to 4096")
        _require(0.0 < self.longest_batch_s <= 600.0, "longest_batch_s", self.longest_batch_s, "over 0, to 600 s")
        _require(1.0 <= self.lease_s <= 600.0, "lease_s", self.lease_s, "1 to 600 s")
        _require(0.0 <= self.pull_wait_s <= 20.0, "pull_wait_s", self.pull_wait_s, "0 to 20 s")
        _require(0.0 <= self.retry_delay_s <= 60.0, "retry_delay_s", self.retry_delay_s, "0 to 60 s")
        _require(self.max_failures >= 1, "max_failures", self.max_failures, "at least 1")
        _require(self.window_s > WINDOW_MARGIN_S, "window_s", self.window_s, f"more than {WINDOW_MARGIN_S:g} s")


def _require(holds: bool, name: str, got: object, allowed: str) -> None:
    if not holds:
        raise InputError(f"{name} is out of range", got=got, allowed=allowed, fix=f"give another {name}")
