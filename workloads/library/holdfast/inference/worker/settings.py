"""The settings of a worker, few and checked; everything else follows from them."""

from dataclasses import dataclass

from holdfast.support.values import between
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

LONGEST_PREDICTION_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    micro_batch: int = 32
    """The maximum number of items that are predicted, committed and acked together."""
    longest_batch_s: float = 1.0
    """The maximum time of a micro-batch, which limits its items: a drain waits for one."""
    fill_s: float = 0.05
    """The time that a micro-batch waits for more items while it is not full."""
    pull_wait_s: float = 1.0
    """The longest wait of one pull, which may delay a drain."""
    lease_s: float = 10.0
    """The time after which the items of a killed worker return to the queue."""
    window_s: float = float(DEFAULT_WINDOW.pod_s)
    """The grace period of the pool, after the notice."""
    max_failures: int = 3
    """The number of processing failures that make an item dead. Evictions never count."""
    predict_timeout_s: float = 0.0
    """The maximum time of a prediction; 0 learns it, up to LONGEST_PREDICTION_S.

    After it, items are tried one by one, and the failure of the guilty one counts.
    """
    settle_s: float = 1.0
    """The wait after a death of the predicting process.

    A worker that still runs after it was not evicted together with that process.
    """
    retry_delay_s: float = 1.0
    """The delay of a failed item for each of its failures, so that short faults can end."""

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
