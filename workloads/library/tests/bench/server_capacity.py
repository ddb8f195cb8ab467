"""What batching brings, and what overload does: one server, no proxy."""

from pathlib import Path
from typing import Any

from workloads.library.tests.bench.server_client import INFER, k6
from workloads.library.tests.inference.server.playing_predictors import BATCH_S, ITEM_S
from workloads.library.tests.inference.server.serving import Served, served
from workloads.library.tests.processes import rss_mib, sampled

BATCH = 32
USERS = 4 * BATCH
"""Of the batching: with two batches of users the next batch is only full where the client comes back within one, and
then the client's speed is measured."""
OVERLOAD = 3.0
DEADLINE_S = 4.0
SCALE = 32.0
"""Of the predictor's time in the overload, so that the model is the limit and not this machine's cores."""


def url(server: Served) -> str:
    return f"http://127.0.0.1:{server.port}{INFER}"


def batching(folder: Path, *, seconds: float) -> dict[str, Any]:
    """The same users, the same predictor: batches of 32, and one at a time."""
    figures: dict[str, Any] = {}
    for name, batch in (("batched", BATCH), ("single", 1)):
        with served(folder, "--batch", str(batch)) as server:
            counted = k6(url(server), seconds=seconds, users=USERS, folder=folder)
            figures[f"{name}_per_s"] = round(counted.ok / seconds, 1)
            figures[f"{name}_p99_ms"] = counted.answered_ms.get("p(99)")
    figures["batching_factor"] = round(figures["batched_per_s"] / figures["single_per_s"], 2)
    return figures


def overload(folder: Path, *, seconds: float) -> dict[str, Any]:
    batch_s = SCALE * (BATCH_S + ITEM_S * BATCH)
    capacity = BATCH / batch_s
    options = ("--model", str(SCALE), "--longest-request", str(DEADLINE_S), "--batch", str(BATCH))
    with served(folder, *options) as server, sampled(lambda: rss_mib(server.process.pid), 0.5) as seen:
        counted = k6(url(server), rate=OVERLOAD * capacity, seconds=seconds, users=1000, folder=folder)
    return {
        "overload_answered_share": round(counted.ok / seconds / capacity, 3),
        "overload_bound_ms": round(1000 * (DEADLINE_S + batch_s)),
        "overload_answered_p99_ms": counted.answered_ms.get("p(99)"),
        "overload_refused_p99_ms": counted.refused_ms.get("p(99)"),
        "overload_codes": counted.codes,
        # Let in, and then too late: neither answered nor refused at once.
        "overload_late_share": round(counted.codes.get("504", 0) / counted.asked, 4),
        "overload_dropped": counted.dropped,
        # After the first tenth: by then every buffer has been needed once.
        "overload_rss_growth_mib": round(max(seen[-len(seen) // 2 :]) - seen[len(seen) // 10], 1),
    }
