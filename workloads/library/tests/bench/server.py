"""The online server: requests lost over evictions, roll-outs and deaths; batching, overload, lost models, rivals.

    python -m workloads.library.tests.bench.server                              # what `make bench-server` runs: 18 minutes
    python -m workloads.library.tests.bench.server --posts 11200 --evictions 5 --rollouts 1 --sections drains controls
    make bench-server SECTIONS="batching rivals"

Real server processes behind a real Envoy, k6 as the client. --rate is that of the open loop, a second; --hangs of
predicting processes; --seconds of overload, of the rest a share. Endpoints move as late as in a cluster: see workloads/library/holdfast/drill/serving/fleet.py.
"""

import tempfile
from pathlib import Path

from workloads.library.tests.bench.result import ended, judged, options, played
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
    o = options(
        __doc__, posts=112_000, rate=400.0, evictions=50, rollouts=10, kills=20, freezes=5, hangs=8, seconds=60.0,
        sections=SECTIONS,
    )  # fmt: skip
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
