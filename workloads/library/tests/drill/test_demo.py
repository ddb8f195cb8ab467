"""Tests a small demo: it succeeds, judges by stored results, and runs again after a kill."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.drill.pods import clear
from workloads.library.tests.drill.test_local_drill import find_processes
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process

SMALL = (
    "Size(ranks=1, steps=40, save_every=10, training_evictions=1, workers=2, batch_evictions=1,"
    " documents=40, serving_rounds=1)"
)
RUN = """
import sys
from pathlib import Path
from holdfast.drill import demo
sys.exit(demo.run_demo(Path({out!r}), seed=5, size=demo.{size}))
"""


def start(out: Path) -> subprocess.Popen[str]:
    code = RUN.format(out=str(out), size=SMALL)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(1500)  # on an idle machine a tenth of it
def test_a_demo_killed_at_a_random_moment_runs_again_and_succeeds(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = start(out)
    try:
        until(
            lambda: list(out.glob("events/train-*.jsonl")),
            lambda: str(first.communicate()),
            alive=lambda: first.poll() is None,
            within_s=400,
        )
        time.sleep(random.uniform(0, 5))  # the moment is what varies
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    until(lambda: not find_processes(out))
    second = start(out)
    stdout, stderr = second.communicate(timeout=1000)
    assert second.returncode == 0, stdout[-2000:] + stderr[-4000:]
    assert stderr.startswith("train     undisturbed\n"), "it begins with its first act"
    (verdict,) = stdout.splitlines()
    assert verdict.startswith("demo ok: ")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["training"]["bit_exact"]
    assert summary["training"]["evictions"] == 1
    batch = {
        "lost": 0,
        "duplicated": 0,
        "kills": 1,
        "same_scores": True,
    }
    assert summary["batch"] == summary["batch"] | batch
    # Not the retries, which no client notices: a busy machine may pause a server for so long that
    # another one answers. drill/test_serving.py counts them, with more time for each request.
    serving = {
        "evictions": 2,
        "failed": 0,
        "counts_differ": 0,
        "shed": 0,
    }
    assert summary["serving"] == summary["serving"] | serving
    assert summary["serving"]["requests"] > 50
    assert summary["serving"]["p99_ms"] > 0
    assert (out / "report.html").stat().st_size > 1000
    assert not find_processes(out)
    assert clear(f"demo:{out}") == 0
