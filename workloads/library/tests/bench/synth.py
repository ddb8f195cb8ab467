"""`make bench-synth`: the time to synthesize an environment, compared with plain imports.

Plain imports load all bindings. Both run in turn, warm (byte code and jsii's cache exist), each as
its own process on the same Node. The fastest run of each counts, because other processes may load
the machine. Memory is the highest sum of resident memory over Python and its Node. Linux only: it
reads /proc.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.ops import engine
from workloads.library.tests.bench.result import finish
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
    """Returns wall seconds and peak megabytes of one synthesis."""
    with tempfile.TemporaryDirectory() as out:
        environment = os.environ | {
            "HOLDFAST_ENV": "example",
            "HOLDFAST_STATE": "local",
            "CDKTF_OUTDIR": out,
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        node_folder = engine.node_folder()
        if node_folder:
            environment["JSII_NODE"] = str(node_folder / "node")
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        with sampled(lambda: rss_mib(process.pid, with_children=True), 0.02) as samples_mib:
            process.wait()
        wall_s = time.monotonic() - start
        if process.returncode != 0 or not (Path(out) / "manifest.json").exists():
            sys.exit(f"synthesis failed with {process.returncode}")
        return wall_s, max(samples_mib)


def main() -> None:
    plain_command = [sys.executable, "-c", PLAIN]
    for command in (OURS, plain_command):
        measure(command)  # fills the caches
    walls_s = list[float]()
    plain_walls_s = list[float]()
    peaks_mb = list[float]()
    for _ in range(RUNS):
        wall_s, peak_mb = measure(OURS)
        walls_s.append(wall_s)
        peaks_mb.append(peak_mb)
        plain_wall_s, _ = measure(plain_command)
        plain_walls_s.append(plain_wall_s)
    fastest_s = min(walls_s)
    fastest_plain_s = min(plain_walls_s)
    goals = {
        "wall_under_5_s": fastest_s < MAX_WALL_S,
        "memory_under_650_mb": max(peaks_mb) < MAX_RSS_MB,
        "three_times_faster_than_plain": fastest_plain_s / fastest_s >= MIN_SPEEDUP,
    }
    figures = {
        "schema": "holdfast.bench-synth/1",
        "rss_mb": round(max(peaks_mb)),
        "wall_s": round(fastest_s, 2),
        "plain_wall_s": round(fastest_plain_s, 2),
    }
    finish(figures, goals)


if __name__ == "__main__":
    main()
