"""How long a process may live after the notice, and what its exit code means.

Pools, grace periods, podFailurePolicy and the budgets of processes must agree on these. Source: GKE
documentation on Spot VMs; kubelet graceful node shutdown.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ShutdownWindow:
    """Seconds from the preemption notice: `total_s` for the node, the last `critical_s` of it for
    system pods.
    """

    total_s: int
    critical_s: int

    @property
    def pod_s(self) -> int:
        """What an ordinary pod gets. A longer terminationGracePeriodSeconds is ignored by the
        kubelet.
        """
        return self.total_s - self.critical_s


DEFAULT_WINDOW = ShutdownWindow(total_s=30, critical_s=15)
# Spot pools only, control plane 1.35.0-gke.1171000 or newer; the API takes 0, 30 or 120 and nothing
# else.
EXTENDED_WINDOW = ShutdownWindow(total_s=120, critical_s=15)

# What a process keeps back of its window for the signal's delivery and for the kernel to reap it.
WINDOW_MARGIN_S = 3.0

# A flex-start node ends after at most 7 days; a label may request a shorter run.
FLEX_MAX_RUN_S = 604_800
FLEX_MIN_RUN_S = 600

# On the node, written by GKE: when a node of limited duration ends (RFC 3339).
ANNOTATION_TERMINATION = "node.gke.io/machine-termination-datetime"
