"""The online server: requests lost in evictions and deaths; batching, overload, rivals, CPU.

`make bench-server` runs all of it, in 20 minutes. Parts and smaller forms:

    python -m workloads.library.tests.bench.server --share 0.1 --sections drains controls
    make bench-server SECTIONS="batching rivals"

Real server processes run behind a real Envoy, with k6 as the client. --rate is the requests per
second of the open loop; --share scales all requests, actions and seconds. Endpoints change as late
as in a cluster: see workloads/library/holdfast/drill/serving/fleet.py.
"""

import tempfile
from pathlib import Path

from workloads.library.tests.bench.result import (
    Figures,
    Goals,
    finish,
    judge_goals,
    options,
    run_sections,
)
from workloads.library.tests.bench.serving.capacity import batching, overload, rivals
from workloads.library.tests.bench.serving.cost import measure_cost
from workloads.library.tests.bench.serving.drains import controls, deaths, drains, late, models
from workloads.library.tests.bench.serving.poison import poison
from workloads.library.tests.bench.serving.vanished import lose_machines

POSTS = 112_000
VANISHED = 3
VANISHED_S = 45.0
LATE_S = 20.0
LEAST_FACTOR = 10.0
LEAST_ANSWERED = 0.9
MOST_REFUSED_MS = 50.0
MOST_LATE = 0.01
LEAST_GOOD = 0.99
COST_REQUESTS = 5000
MOST_COST = 2.0
"""The bound on the processor time of a request, relative to a server that only batches."""
MOST_LOADS = 2
POISON_RATE = 50.0
"""Requests per second next to poisoned ones, from a client in Python."""
MOST_GROWTH_MIB = 16.0
DELAYS_S = (0, 3)
"""Seconds by which endpoints are late in `late`; every other run has one second."""


def _count_lost(figures: Figures, name: str) -> int:
    """Counts failed requests, and those that only a retry of the proxy saved."""
    return figures[f"{name}_failed"] + figures[f"{name}_retries"]


def _find_least_answered(figures: Figures, faults: str) -> float:
    """Returns the smaller share of answered requests: with one body, or with ever new ones."""
    runs = figures["poison"]
    shared_server = runs[f"same_{faults}"]
    new_server = runs[f"new_{faults}"]
    return min(shared_server["answered"], new_server["answered"])


GOALS: Goals = {
    "drains": {
        "no request failed over evictions and roll-outs": lambda f: f["drains_failed"] == 0,
        "k6 made 99 % of the arrivals, at least": lambda f: (
            f["drains_arrivals_not_made"] <= f["drains_posts"] // 100
        ),
        "no retry was needed for them": lambda f: f["drains_retries"] == 0,
        "client, proxy and servers count the same": lambda f: (
            f["drains_posts"] == f["drains_by_proxy"] == f["drains_by_servers"]
        ),
        "every eviction and roll-out was played": lambda f: (
            f["drains_actions"] == f["drains_actions_wanted"]
        ),
        "every server exited cleanly": lambda f: f["drains_exit_codes"] == [143],
    },
    "late": {
        "none failed or was retried with endpoints 0 and 3 s late": lambda f: (
            not any(_count_lost(f, f"late_{delay}s") for delay in DELAYS_S)
        )
    },
    "deaths": {
        "no request failed over kills and freezes": lambda f: f["deaths_failed"] == 0,
        "every kill and freeze was played": lambda f: (
            f["deaths_actions"] == f["deaths_actions_wanted"]
        ),
    },
    "models": {
        "no request failed over models that hang or die": lambda f: f["models_failed"] == 0,
        "every hang and death was played": lambda f: (
            f["models_actions"] == f["models_actions_wanted"]
        ),
    },
    "poison": {
        "99 % of good requests answered while others crash the model every 3 s": lambda f: (
            _find_least_answered(f, "kills") >= LEAST_GOOD
        ),
        "99 % of good requests answered while others hang the model every 3 s": lambda f: (
            _find_least_answered(f, "hangs") >= LEAST_GOOD
        ),
        "one body, sent 100 times, costs two loads in the fleet, at most": lambda f: (
            max(f["poison"]["often_kill"]["loads"], f["poison"]["often_hang"]["loads"])
            <= MOST_LOADS
        ),
    },
    "vanished": {
        "no request failed over machines gone without a reset": lambda f: f["vanished_failed"] == 0,
        "machines without a reset needed retries": lambda f: f["vanished_retries"] > 0,
    },
    "controls": {
        "control: stock uvicorn loses requests": lambda f: _count_lost(f, "control_stock") > 0,
        "control: the preStop sleep loses requests": lambda f: (
            _count_lost(f, "control_prestop") > 0
        ),
        "control: the default breaker loses requests": lambda f: f["control_breaker_failed"] > 0,
    },
    "batching": {
        f"batches bring {LEAST_FACTOR:g} times": lambda f: f["batching_factor"] >= LEAST_FACTOR
    },
    "overload": {
        "overload: 90 % of capacity in time": lambda f: (
            f["overload_answered_share"] >= LEAST_ANSWERED and f["overload_dropped"] == 0
        ),
        "overload: p99 within the deadline and one batch": lambda f: (
            f["overload_answered_p99_ms"] <= f["overload_bound_ms"]
        ),
        "overload: refused in 50 ms": lambda f: f["overload_refused_p99_ms"] <= MOST_REFUSED_MS,
        "overload: 1 % let in and then late, at most": lambda f: (
            f["overload_late_share"] <= MOST_LATE
        ),
        "overload: memory flat": lambda f: f["overload_rss_growth_mib"] <= MOST_GROWTH_MIB,
    },
    "rivals": {
        "throughput at least LitServe's": lambda f: f["holdfast_per_s"] >= f["litserve_per_s"],
        "p99 at most LitServe's, same users": lambda f: (
            f["holdfast_p99_ms"] <= f["litserve_p99_ms"]
        ),
        "p99 at most LitServe's, same rate": lambda f: (
            f["holdfast_steady_p99_ms"] <= f["litserve_steady_p99_ms"]
        ),
    },
    "cost": {
        f"at most {MOST_COST:g} times the CPU of a bare batcher, in full batches": lambda f: (
            f["cost"]["holdfast_full_ratio"] <= MOST_COST
        ),
        f"at most {MOST_COST:g} times the CPU of a bare batcher, one request at a time": lambda f: (
            f["cost"]["holdfast_alone_ratio"] <= MOST_COST
        ),
        "less CPU a request than LitServe": lambda f: (
            f["cost"]["holdfast_full_ratio"] < f["cost"]["litserve_full_ratio"]
        ),
        f"at most {MOST_COST:g} times with a busy neighbor": lambda f: (
            max(f["cost"]["holdfast_full_busy_ratio"], f["cost"]["holdfast_alone_busy_ratio"])
            <= MOST_COST
        ),
        "less than LitServe with a busy neighbor": lambda f: (
            f["cost"]["holdfast_full_busy_ratio"] < f["cost"]["litserve_full_busy_ratio"]
        ),
    },
}


def main() -> None:
    arguments = options(__doc__, rate=400.0, share=1.0, sections=(*GOALS,))

    def part(count: int) -> int:
        return max(1, round(count * arguments.share))

    rate = arguments.rate
    seconds = 60.0 * arguments.share
    posts = part(POSTS)
    with tempfile.TemporaryDirectory(prefix="holdfast-server-bench-") as name:
        folder = Path(name)
        sections = {
            "drains": lambda: drains(
                folder,
                posts=posts,
                rate=rate,
                evictions=part(50),
                rollouts=part(10),
            ),
            "late": lambda: late(folder, rate=rate, seconds=LATE_S, delays_s=DELAYS_S),
            "vanished": lambda: lose_machines(
                folder,
                rate=rate,
                seconds=VANISHED_S,
                count=VANISHED,
            ),
            "deaths": lambda: deaths(
                folder,
                rate=rate,
                kills=part(20),
                freezes=part(5),
            ),
            "models": lambda: models(
                folder,
                posts=posts,
                rate=rate,
                hangs=part(8),
                kills=part(20),
            ),
            "poison": lambda: poison(folder, rate=POISON_RATE, seconds=seconds),
            "controls": lambda: controls(folder, rate=rate, seconds=seconds * 0.4),
            "batching": lambda: batching(folder, seconds=seconds / 6),
            "overload": lambda: overload(folder, seconds=seconds),
            "rivals": lambda: rivals(folder, seconds=seconds / 6),
            "cost": lambda: measure_cost(folder, requests=part(COST_REQUESTS)),
        }
        figures = run_sections(sections, arguments.sections)
    finish(figures, judge_goals(GOALS, figures))


if __name__ == "__main__":
    main()
