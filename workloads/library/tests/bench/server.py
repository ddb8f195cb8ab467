"""The online server: requests lost over evictions, roll-outs and deaths; batching, overload, lost models, rivals.

    python -m workloads.library.tests.bench.server                              # what `make bench-server` runs: 18 minutes
    python -m workloads.library.tests.bench.server --posts 11200 --evictions 5 --rollouts 1 --sections drains controls
    make bench-server SECTIONS="batching rivals"

Real server processes behind a real Envoy, k6 as the client. Ends with one JSON line; `goals` says true, false or
"not run" for each number that is promised. Endpoints move as late as in a cluster: see workloads/library/holdfast/drill/serving/fleet.py.
"""

import argparse
import tempfile
from pathlib import Path

from workloads.library.tests.bench.result import ended, judged, played
from workloads.library.tests.bench.server_capacity import batching, overload
from workloads.library.tests.bench.server_drains import controls, deaths, drains, late, models
from workloads.library.tests.bench.server_goals import DELAYS_S, GOALS
from workloads.library.tests.bench.server_rivals import rivals
from workloads.library.tests.bench.server_vanished import vanished

SECTIONS = ("drains", "late", "deaths", "models", "vanished", "controls", "batching", "overload", "rivals")
VANISHED, VANISHED_S = 3, 45.0
LATE_S = 20.0
DEATH_S = 4.5
"""For each death: with two of four ready at least, so that some wait for a replacement."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posts", type=int, default=112_000)
    parser.add_argument("--rate", type=float, default=400.0, help="of the open loop, a second")
    parser.add_argument("--evictions", type=int, default=50)
    parser.add_argument("--rollouts", type=int, default=10)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--hangs", type=int, default=8, help="of predicting processes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload; of the rest a share")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-server-bench-") as name:
        folder = Path(name)
        sections = {
            "drains": lambda: drains(folder, posts=o.posts, rate=o.rate, evictions=o.evictions, rollouts=o.rollouts),
            "late": lambda: late(folder, rate=o.rate, seconds=LATE_S, delays_s=DELAYS_S),
            "vanished": lambda: vanished(folder, rate=o.rate, seconds=VANISHED_S, count=VANISHED),
            "deaths": lambda: deaths(
                folder, rate=o.rate, seconds=(o.kills + o.freezes) * DEATH_S, kills=o.kills, freezes=o.freezes
            ),
            "models": lambda: models(folder, posts=o.posts, rate=o.rate, hangs=o.hangs, kills=o.kills),
            "controls": lambda: controls(folder, rate=o.rate, seconds=o.seconds * 0.4),
            "batching": lambda: batching(folder, seconds=o.seconds / 6),
            "overload": lambda: overload(folder, seconds=o.seconds),
            "rivals": lambda: rivals(folder, seconds=o.seconds / 6),
        }
        figures = played(sections, o.sections)
    ended(figures, judged(GOALS, figures))


if __name__ == "__main__":
    main()
