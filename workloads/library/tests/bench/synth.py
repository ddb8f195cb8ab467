"""`make bench-synth`: how long one environment takes to synthesise, against plain imports of the
bindings.

Both run in this one bench, in turn, warm (byte code and jsii's cache exist), each as a process of
its own, on the same Node; the fastest run of each counts, since others may load the machine. Memory
is the highest sum of resident memory over Python and its Node. Linux only: it reads /proc.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.ops import engine
from workloads.library.tests.bench.result import ended
from workloads.library.tests.processes import rss_mib, sampled

ROOT = Path(__file__).parents[4]
OURS = [sys.executable, "-m", "infra.main"]
PLAIN = (
    "import cdktf_cdktf_provider_google, runpy; runpy.run_module('infra.main', run_name='__main__')"
)
RUNS = 3
MAX_WALL_S = 5.0
MAX_RSS_MB = 650.0
MIN_SPEEDUP = 3.0


def measure(command: list[str]) -> tuple[float, float]:
    """Wall seconds and megabytes of one synthesis."""
    with tempfile.TemporaryDirectory() as out:
        variables = {
            "HOLDFAST_ENV": "example",
            "HOLDFAST_STATE": "local",
            "CDKTF_OUTDIR": out,
        }
        variables |= {"JSII_NODE": str(folder / "node")} if (folder := engine.node_folder()) else {}
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=kept | variables,
            stdout=subprocess.DEVNULL,
        )
        with sampled(lambda: rss_mib(process.pid, with_children=True), 0.02) as seen:
            process.wait()
        wall = time.monotonic() - started
        if process.returncode != 0 or not (Path(out) / "manifest.json").exists():
            sys.exit(f"synthesis failed with {process.returncode}")
        return wall, max(seen)


def main() -> None:
    plain_command = [sys.executable, "-c", PLAIN]
    for command in (OURS, plain_command):
        measure(command)  # fills the caches
    pairs = [(measure(OURS), measure(plain_command)) for _ in range(RUNS)]
    wall, plain_wall = (min(run[0] for run in runs) for runs in zip(*pairs, strict=True))
    rss = max(ours[1] for ours, _ in pairs)
    goals = {
        "wall_under_5_s": wall < MAX_WALL_S,
        "memory_under_650_mb": rss < MAX_RSS_MB,
        "three_times_faster_than_plain": plain_wall / wall >= MIN_SPEEDUP,
    }
    times = {
        "wall_s": round(wall, 2),
        "plain_wall_s": round(plain_wall, 2),
    }
    ended(
        {
            "schema": "holdfast.bench-synth/1",
            "rss_mb": round(rss),
        }
        | times,
        goals,
    )


if __name__ == "__main__":
    main()
