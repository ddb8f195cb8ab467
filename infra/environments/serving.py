"""Settings of online inference: the promised load and the replicas that it needs."""

from dataclasses import dataclass
from math import ceil

from holdfast.vocabulary.serving import USABLE_SHARE
from infra.environments.checks import between, numbers, require


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """Online inference: the load that is promised without Spot, and the peak with Spot."""

    promised_per_s: float
    """Requests per second that on-demand base replicas answer, without any Spot machine."""
    peak_per_s: float
    """Requests per second that are answered while Spot machines are available."""
    replica_per_s: float
    """Requests per second of one replica with full batches; `make bench-server` measures it for
    your model.
    """
    base_replicas: int
    """The minimum number of on-demand replicas; infra.rules checks that they can keep the promise.
    """
    base_most: int
    """The maximum number of on-demand replicas."""
    overflow_most: int
    """The maximum number of replicas on Spot."""
    inflight_target: int = 24
    """Running and waiting requests per replica above which a replica is added."""

    def __post_init__(self) -> None:
        rates = dict.fromkeys(
            ("promised_per_s", "peak_per_s", "replica_per_s"),
            (0.001, 10_000_000),
        )
        replicas = dict.fromkeys(("base_replicas", "overflow_most"), (1, 1_000))
        numbers("serving.", self, inflight_target=(1, 100_000), **rates, **replicas)
        between("serving.base_most", self.base_most, self.base_replicas, 1_000)
        require(
            self.promised_per_s <= self.peak_per_s,
            "serving.promised_per_s",
            self.promised_per_s,
            "at most peak_per_s",
            "promise less, or raise the peak",
        )

    @property
    def base_needed(self) -> int:
        """Replicas for the promised load without Spot, each below the load at which queues grow."""
        return ceil(self.promised_per_s / (USABLE_SHARE * self.replica_per_s))

    @property
    def peak_needed(self) -> int:
        return ceil(self.peak_per_s / (USABLE_SHARE * self.replica_per_s))

    @property
    def shed_per_s(self) -> float:
        """Requests per second of the peak that are rejected without Spot machines, until others
        start.
        """
        return max(0.0, self.peak_per_s - USABLE_SHARE * self.base_replicas * self.replica_per_s)

    def __str__(self) -> str:
        """Return the rule with its three numbers: B >= promise / (0.8 mu)."""
        return (
            f"base {self.base_replicas} >= {self.promised_per_s:g} / ({USABLE_SHARE:g} x"
            f" {self.replica_per_s:g}) = {self.base_needed}; promised {self.promised_per_s:g}/s,"
            f" peak {self.peak_per_s:g}/s, refused when all Spot goes at once {self.shed_per_s:g}/s"
        )
