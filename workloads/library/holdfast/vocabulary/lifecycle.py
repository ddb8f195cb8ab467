"""Defines how long a process may live after the notice of a preemption.

Pools, grace periods, podFailurePolicy and the budgets of processes must agree on these. Source: GKE
documentation on Spot VMs; kubelet graceful node shutdown.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ShutdownWindow:
    """Seconds from the preemption notice to the end of the node.

    The last `critical_s` of `total_s` are for system pods.
    """

    total_s: int
    critical_s: int

    @property
    def pod_s(self) -> int:
        """The time for an ordinary pod. The kubelet ignores a longer grace period."""
        return self.total_s - self.critical_s


DEFAULT_WINDOW = ShutdownWindow(total_s=30, critical_s=15)
# For Spot pools only, control plane 1.35.0-gke.1171000 or newer; the API takes 0, 30 or 120 only.
EXTENDED_WINDOW = ShutdownWindow(total_s=120, critical_s=15)

# The part of its window that a process leaves for the signal's delivery and its reaping.
WINDOW_MARGIN_S = 3.0

# A flex-start node ends after at most 7 days; a label may request a shorter run.
FLEX_MAX_RUN_S = 604_800
FLEX_MIN_RUN_S = 600

# On the node, written by GKE: when a node of limited duration ends (RFC 3339).
ANNOTATION_TERMINATION = "node.gke.io/machine-termination-datetime"
