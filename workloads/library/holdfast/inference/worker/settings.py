"""The dials of a worker, few and checked; everything else follows from them."""

from dataclasses import dataclass

from holdfast.support.values import between
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

LONGEST_PREDICTION_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    micro_batch: int = 32
    """Items predicted, committed and acked together."""
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
    predict_timeout_s: float = 0.0
    """A micro-batch that takes longer is ended; its items are then tried alone, the guilty one
    counted. 0: learned from those before, LONGEST_PREDICTION_S at most.
    """
    settle_s: float = 1.0
    """When the predicting process dies: a worker that is still here after this was not evicted with
    it.
    """
    retry_delay_s: float = 1.0
    """A failed item waits this long for each failure so far: what failed for a moment gets a
    chance.
    """

    def __post_init__(self) -> None:
        between("the micro-batch is out of range", self.micro_batch, 1, 4096)
        between("the longest batch is out of range", self.longest_batch_s, 0.001, 600.0)
        between("the lease is out of range", self.lease_s, 1.0, 600.0)
        between("the wait of a pull is out of range", self.pull_wait_s, 0.0, 20.0)
        between("the delay of a retry is out of range", self.retry_delay_s, 0.0, 60.0)
        between("the number of failures is out of range", self.max_failures, 1, 1_000_000)
        between(
            "the timeout of a prediction is out of range", self.predict_timeout_s, 0.0, 86_400.0
        )
        between("the window is out of range", self.window_s, WINDOW_MARGIN_S + 0.1, 86_400.0)
