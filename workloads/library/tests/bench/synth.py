"""`make bench-synth`: how long one environment takes to synthesise, against plain imports of the bindings.

Both run in this one bench, in turn, warm (byte code and jsii's cache exist), each as a process of its own, on the
same Node; the fastest run of each counts, since others may load the machine. Memory is the highest sum of resident
memory over Python and its Node. Linux only: it reads /proc.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.ops import engine
from workloads.library.tests.bench.result import ended
from workloads.library.tests.processes import rss_mib

ROOT = Path(__file__).parents[4]
OURS = [sys.executable, "-m", "infra.main"]
PLAIN = "import cdktf_cdktf_provider_google, runpy; runpy.run_module('infra.main', run_name='__main__')"
RUNS = 3
MAX_WALL_S, MAX_RSS_MB, MIN_SPEEDUP = 5.0, 650.0, 3.0


def measure(command: list[str]) -> tuple[float, float]:
    """Wall seconds and megabytes of one synthesis."""
    with tempfile.TemporaryDirectory() as out:
        variables = {"HOLDFAST_ENV": "example", "HOLDFAST_STATE": "local", "CDKTF_OUTDIR": out}
        variables |= {"JSII_NODE": str(folder / "node")} if (folder := engine.node_folder()) else {}
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, env=kept | variables, stdout=subprocess.DEVNULL)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, rss_mib(process.pid, with_children=True))
            time.sleep(0.02)
        wall = time.monotonic() - started
        if process.returncode != 0 or not (Path(out) / "manifest.json").exists():
            sys.exit(f"synthesis failed with {process.returncode}")
        return wall, peak


def main() -> None:
    plain_command = [sys.executable, "-c", PLAIN]
    for command in (OURS, plain_command):
        measure(command)  # fills the caches
    pairs = [(measure(OURS), measure(plain_command)) for _ in range(RUNS)]
    (wall, rss), (plain_wall, plain_rss) = (
        (min(run[0] for run in runs), max(run[1] for run in runs)) for runs in zip(*pairs, strict=True)
    )
    goals = {
        "wall_under_5_s": wall < MAX_WALL_S,
        "memory_under_650_mb": rss < MAX_RSS_MB,
        "three_times_faster_than_plain": plain_wall / wall >= MIN_SPEEDUP,
    }
    result = {
        "schema": "holdfast.bench-synth/1",
        "wall_s": round(wall, 2),
        "rss_mb": round(rss),
        "plain_wall_s": round(plain_wall, 2),
        "plain_rss_mb": round(plain_rss),
    }
    ended(result, goals)


if __name__ == "__main__":
    main()
