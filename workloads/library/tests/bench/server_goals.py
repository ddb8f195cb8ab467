"""The numbers that are promised of the online server, each judged from what its section of the bench found."""

from workloads.library.tests.bench.result import Found, Goal

LEAST_FACTOR = 10.0
LEAST_ANSWERED = 0.9
MOST_REFUSED_MS = 50.0
MOST_LATE = 0.01
MOST_GROWTH_MIB = 16.0
DELAYS_S = (0, 3)
"""Of endpoints, beside the one second of every other run."""


def _lost(found: Found, name: str) -> int:
    """With what only a retry of the proxy saved."""
    return found[f"{name}_failed"] + found[f"{name}_retries"]


GOALS: tuple[Goal, ...] = (
    ("no request failed over evictions and roll-outs", "drains", lambda f: f["drains_failed"] == 0),
    (
        "k6 made 99 % of the arrivals, at least",
        "drains",
        lambda f: f["drains_arrivals_not_made"] <= f["drains_posts"] // 100,
    ),
    ("no retry was needed for them", "drains", lambda f: f["drains_retries"] == 0),
    (
        "client, proxy and servers count the same",
        "drains",
        lambda f: f["drains_posts"] == f["drains_by_proxy"] == f["drains_by_servers"],
    ),
    ("every eviction and roll-out was played", "drains", lambda f: f["drains_actions"] == f["drains_actions_wanted"]),
    ("every server left in order", "drains", lambda f: f["drains_exit_codes"] == [143]),
    (
        "none failed or was retried with endpoints 0 and 3 s late",
        "late",
        lambda f: not any(_lost(f, f"late_{delay}s") for delay in DELAYS_S),
    ),
    ("no request failed over kills and freezes", "deaths", lambda f: f["deaths_failed"] == 0),
    ("every kill and freeze was played", "deaths", lambda f: f["deaths_actions"] == f["deaths_actions_wanted"]),
    ("no request failed over models that hang or die", "models", lambda f: f["models_failed"] == 0),
    ("every hang and death was played", "models", lambda f: f["models_actions"] == f["models_actions_wanted"]),
    ("no request failed over machines gone without a reset", "vanished", lambda f: f["vanished_failed"] == 0),
    ("machines without a reset needed retries", "vanished", lambda f: f["vanished_retries"] > 0),
    ("control: stock uvicorn loses requests", "controls", lambda f: _lost(f, "control_stock") > 0),
    ("control: the preStop sleep loses requests", "controls", lambda f: _lost(f, "control_prestop") > 0),
    ("control: the default breaker loses requests", "controls", lambda f: f["control_breaker_failed"] > 0),
    (f"batches bring {LEAST_FACTOR:g} times", "batching", lambda f: f["batching_factor"] >= LEAST_FACTOR),
    (
        "overload: 90 % of capacity in time",
        "overload",
        lambda f: f["overload_answered_share"] >= LEAST_ANSWERED and f["overload_dropped"] == 0,
    ),
    (
        "overload: p99 within the deadline and one batch",
        "overload",
        lambda f: f["overload_answered_p99_ms"] <= f["overload_bound_ms"],
    ),
    ("overload: refused in 50 ms", "overload", lambda f: f["overload_refused_p99_ms"] <= MOST_REFUSED_MS),
    ("overload: 1 % let in and then late, at most", "overload", lambda f: f["overload_late_share"] <= MOST_LATE),
    ("overload: memory flat", "overload", lambda f: f["overload_rss_growth_mib"] <= MOST_GROWTH_MIB),
    ("throughput at least LitServe's", "rivals", lambda f: f["holdfast_per_s"] >= f["litserve_per_s"]),
    ("p99 at most LitServe's, same users", "rivals", lambda f: f["holdfast_p99_ms"] <= f["litserve_p99_ms"]),
    (
        "p99 at most LitServe's, same rate",
        "rivals",
        lambda f: f["holdfast_steady_p99_ms"] <= f["litserve_steady_p99_ms"],
    ),
)
