"""What Kueue's WaitForPodsReady does to jobs that wait for their nodes, by its configuration.

It was played on the real Kueue 0.19: workloads/library/tests/cluster/test_waiting_for_pods.py.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.contract.values import duration_s

GATE = "DisableWaitForPodsReady"
DEFAULT = "30m"
LEAST_S = 12 * 3600.0
"""A start in Google's queue, or a night without Spot, takes hours; a shorter limit restarts it."""
FIX = (
    f"waitForPodsReady: {{timeout: 12h, recoveryTimeout: 0s}}; or, up to Kueue 0.20, featureGates: {{{GATE}: true}} "
    "and no waitForPodsReady"
)


def hazards(configuration: Mapping[str, Any], *, by_default: bool = True) -> Iterator[tuple[str, str]]:
    """Field of waitForPodsReady and what it does to our jobs. `by_default`: it is on unless switched off, as from 0.19."""
    limits = configuration.get("waitForPodsReady")
    limits = limits if isinstance(limits, Mapping) else {}
    if not _is_on(configuration, limits, by_default=by_default):
        return
    text = str(limits.get("timeout") or DEFAULT)
    # Zero counts as left out, from 0.19; before, and in v1beta1, Kueue does not start with it.
    if go_duration_s(text) == 0:
        text = DEFAULT
    if (go_duration_s(text) or 0.0) < LEAST_S:
        yield "timeout", f"a job whose nodes take longer than {text} is queued again and again"
    # Left out, it is as long as `timeout`.
    recovery = limits.get("recoveryTimeout")
    if recovery is None or go_duration_s(str(recovery)) != 0:
        yield "recoveryTimeout", f"a gang that lacks a pod for {recovery or text} is suspended as a whole"
    if limits.get("blockAdmission") is True:
        yield "blockAdmission", "one job that waits for its nodes holds up all that come after it"


def _is_on(configuration: Mapping[str, Any], limits: Mapping[str, Any], *, by_default: bool) -> bool:
    gates = configuration.get("featureGates")
    if isinstance(gates, Mapping) and gates.get(GATE) is True:
        return False
    if str(configuration.get("apiVersion", "")).endswith("/v1beta1"):
        return limits.get("enable") is True
    return bool(limits) or by_default


def go_duration_s(text: str) -> float | None:
    """Seconds of `12h`, `1h30m0s`, `0`; None for anything else."""
    parts = re.findall(r"[\d.]+[hms]", text)
    if "".join(parts) != text or not parts:
        return 0.0 if text == "0" else None
    seconds = [duration_s(part) for part in parts]
    return None if None in seconds else sum(each for each in seconds if each)
