"""Google's own view of Spot in a region: can it be had, how long does most of it run, how much of it was taken.

Shown beside the advice, never used as churn: the published preemption rate is the share of the Spot VMs that
stopped which were stopped by Google. It has no hour in it.
Source: Compute Engine API, advice.capacity and advice.capacityHistory (beta).
"""

import statistics
from dataclasses import dataclass
from typing import Any

from holdfast.contract.errors import Unjudged
from holdfast.place import google

ENDPOINT = "https://compute.googleapis.com"
# A machine type that most VMs survive for `uptime` has a median life above it: churn below ln 2 / uptime.
LN_2 = 0.693


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    obtainability: float | None
    """0 to 1: how likely the whole request is granted now."""
    uptime_h: float | None
    """What most of these VMs are expected to run at least: 1 min, 10 min or 1 h, never more."""
    preempted_share: float | None
    """Mean over about 30 days: preempted among stopped. Not a rate per hour."""
    days: int

    def lines(self) -> list[str]:
        found: list[str] = []
        if self.obtainability is not None:
            found.append(f"obtainability {self.obtainability:.1f} of 1.0 for this request, now")
        if self.uptime_h:
            found.append(
                f"most run at least {self.uptime_h * 60:.0f} min, so churn is below {LN_2 / self.uptime_h:.2g} a node-hour"
            )
        if self.preempted_share is not None:
            found.append(
                f"{self.preempted_share:.0%} of the Spot VMs that stopped in {self.days} days were preempted:"
                " a share, not a rate per hour, so it replaces no churn"
            )
        return found


def read(project: str, region: str, machine: str, size: int, endpoint: str = ENDPOINT) -> Reading:
    """Needs roles/compute.viewer. One machine type a call: several give a blended score."""
    headers = google.credentials(key_is_enough=False)
    # Beta: the response may change its form at any time, so parse() turns surprises into "not available".
    base = f"{endpoint}/compute/beta/projects/{project}/regions/{region}/advice"
    scheduling = {"scheduling": {"provisioningModel": "SPOT"}}
    advice = google.call(
        f"{base}/capacity",
        headers,
        {
            "instanceProperties": scheduling,
            "instanceFlexibilityPolicy": {"instanceSelections": {"only": {"machineTypes": [machine]}}},
            "size": size,
            # A gang over several zones pays for traffic at every step, so the question is for one zone.
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE"},
        },
    )
    history = google.call(
        f"{base}/capacityHistory",
        headers,
        {"instanceProperties": {"machineType": machine, **scheduling}, "types": ["PREEMPTION"]},
    )
    return parse(advice, history)


def parse(advice: dict[str, Any], history: dict[str, Any]) -> Reading:
    try:
        scores = next((r["scores"] for r in advice.get("recommendations", ()) if "scores" in r), {})
        rates = [float(day["preemptionRate"]) for day in history.get("preemptionHistory", ())]
        uptime = str(scores.get("estimatedUptime", "")).removesuffix("s")
        return Reading(
            obtainability=float(scores["obtainability"]) if "obtainability" in scores else None,
            uptime_h=float(uptime) / 3600 if uptime else None,
            preempted_share=statistics.fmean(rates) if rates else None,
            days=len(rates),
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Unjudged(f"Google's capacity advice has an unknown form: {type(error).__name__}: {error}") from error
