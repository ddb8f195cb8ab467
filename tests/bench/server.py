"""The online server: requests lost over evictions, roll-outs and deaths; batching, overload, model changes.

    python -m tests.bench.server                              # what `make bench-server` runs: 15 minutes
    python -m tests.bench.server --posts 11200 --evictions 5 --rollouts 1 --sections drains controls

Real server processes behind a real Envoy, k6 as the client. Ends with one JSON line; `goals` says true, false or
"not run" for each number that is promised. Endpoints move as late as in a cluster: see workloads/drill/serving/fleet.py.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.server_capacity import batching, overload, swaps
from tests.bench.server_drains import controls, deaths, drains

SECTIONS = ("drains", "deaths", "controls", "batching", "overload", "swaps")
LEAST_FACTOR = 10.0
LEAST_ANSWERED = 0.9
MOST_REFUSED_MS = 50.0
MOST_LATE = 0.01
MOST_GROWTH_MIB = 16.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posts", type=int, default=112_000)
    parser.add_argument("--rate", type=float, default=400.0, help="of the open loop, a second")
    parser.add_argument("--evictions", type=int, default=50)
    parser.add_argument("--rollouts", type=int, default=10)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload, and of each control")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-server-bench-") as name:
        folder = Path(name)
        measured = {
            "drains": lambda: drains(
                folder,
                posts=options.posts,
                rate=options.rate,
                evictions=options.evictions,
                rollouts=options.rollouts,
            ),
            "deaths": lambda: deaths(
                folder,
                rate=options.rate,
                seconds=(options.kills + options.freezes) * 5.0,
                kills=options.kills,
                freezes=options.freezes,
            ),
            "controls": lambda: controls(folder, rate=options.rate, seconds=options.seconds),
            "batching": lambda: batching(folder, seconds=options.seconds / 4),
            "overload": lambda: overload(folder, seconds=options.seconds),
            "swaps": lambda: swaps(folder, count=options.swaps),
        }
        for section in options.sections:
            began = time.monotonic()
            found = measured[section]()
            print(json.dumps(found), file=sys.stderr, flush=True)
            figures |= found
            figures[f"{section}_section_s"] = round(time.monotonic() - began, 1)
            print(f"{section} done after {figures[f'{section}_section_s']} s", file=sys.stderr, flush=True)
    goals = verdict(figures)
    for key, value in figures.items():
        print(f"{key:<34} {value}")
    print(json.dumps({**figures, "goals": goals}))
    return 1 if False in goals.values() else 0


def verdict(found: dict[str, Any]) -> dict[str, bool | str]:
    """Every number of the promise; "not run" for what was left out."""

    def lost(name: str) -> int:
        return found[f"{name}_failed"] + found[f"{name}_retries"]

    checks = {
        "no request failed over evictions and roll-outs": ("drains", lambda: found["drains_failed"] == 0),
        "k6 made 99 % of the arrivals, at least": (
            "drains",
            lambda: found["drains_arrivals_not_made"] <= found["drains_posts"] // 100,
        ),
        "no retry was needed for them": ("drains", lambda: found["drains_retries"] == 0),
        "client, proxy and servers count the same": (
            "drains",
            lambda: found["drains_posts"] == found["drains_by_proxy"] == found["drains_by_servers"],
        ),
        "every server left in order": ("drains", lambda: found["drains_exit_codes"] == [143]),
        "no request failed over kills and freezes": ("deaths", lambda: found["deaths_failed"] == 0),
        "control: stock uvicorn loses requests": ("controls", lambda: lost("control_stock") > 0),
        "control: the preStop sleep loses requests": ("controls", lambda: lost("control_prestop") > 0),
        "control: the default breaker loses requests": ("controls", lambda: found["control_breaker_failed"] > 0),
        f"batches bring {LEAST_FACTOR:g} times": ("batching", lambda: found["batching_factor"] >= LEAST_FACTOR),
        "overload: 90 % of capacity in time": (
            "overload",
            lambda: found["overload_answered_share"] >= LEAST_ANSWERED and found["overload_dropped"] == 0,
        ),
        "overload: refused in 50 ms": ("overload", lambda: found["overload_refused_p99_ms"] <= MOST_REFUSED_MS),
        "overload: 1 % let in and then late, at most": (
            "overload",
            lambda: found["overload_late_share"] <= MOST_LATE,
        ),
        "overload: memory flat": ("overload", lambda: found["overload_rss_growth_mib"] <= MOST_GROWTH_MIB),
        "no request failed over model changes": ("swaps", lambda: found["swaps_failed"] == 0),
        "no answer from a mixture": (
            "swaps",
            lambda: found["swaps_mixtures"] == 0 and found["swaps_commits_seen"] == found["swaps"] + 1,
        ),
    }
    return {
        goal: check() if f"{section}_section_s" in found else "not run" for goal, (section, check) in checks.items()
    }


if __name__ == "__main__":
    sys.exit(main())
