"""Seconds from SIGTERM to a worker's end, in each phase and anywhere in its work.

The phases reach from its first import to an idle queue.
"""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.report.capacity import percentile
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from workloads.library.tests.bench.batches.harness import Bench
from workloads.library.tests.bench.batches.predictors import Marking
from workloads.library.tests.processes import until

LANES = 3  # drains side by side: they mostly sleep
PHASES = ("starting", "loading", "loading_again", "predicting", "committing", "idle")
ANYWHERE = "anywhere"
"""A moment of work on micro-batches that last a second."""
_SLOW_COMMIT = """
CREATE OR REPLACE FUNCTION public.linger() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER lingering AFTER UPDATE ON holdfast.result
FOR EACH STATEMENT EXECUTE FUNCTION public.linger();
ALTER TABLE holdfast.result DISABLE TRIGGER lingering;
"""


def drains(bench: Bench, times: int) -> dict[str, Any]:
    with ThreadPoolExecutor(LANES) as pool:
        seconds = sorted(
            pool.map(lambda number: _drain(bench, ANYWHERE, number, times), range(times))
        )
    recommitted = 0
    for number in range(times):
        job = _job(ANYWHERE, number)
        recommitted -= bench.done(job)
        for event in bench.events(job, "stored"):
            recommitted += event["items"]
    return {
        "drains": len(seconds),
        "drain_p50_s": round(percentile(seconds, 50), 2),
        "drain_p99_s": round(percentile(seconds, 99), 2),
        "drain_recommitted": recommitted,
    }


def drain_phases(bench: Bench, times: int) -> dict[str, Any]:
    bench.rows(_SLOW_COMMIT)
    figures: dict[str, Any] = {}
    worst_p99_s = 0.0
    for phase in PHASES:
        seconds = sorted(_drain(bench, phase, number, times) for number in range(times))
        p99_s = round(percentile(seconds, 99), 2)
        worst_p99_s = max(worst_p99_s, p99_s)
        figures[f"drain_{phase}_p50_s"] = round(percentile(seconds, 50), 2)
        figures[f"drain_{phase}_p99_s"] = p99_s
    figures["drain_phases_worst_p99_s"] = worst_p99_s
    return figures


def _job(phase: str, number: int) -> str:
    return f"drain-{phase.replace('_', '-')}-{number}"


def _drain(bench: Bench, phase: str, number: int, times: int) -> float:
    """Starts a worker, sends SIGTERM in the phase, and returns the seconds until it has ended."""
    job = _job(phase, number)
    folder = bench.folder / job
    folder.mkdir()
    bench.fill(job, 200)
    if phase == "idle":
        bench.rows("DELETE FROM holdfast.queue WHERE job = %s", job)
    if phase == "committing":
        bench.rows("ALTER TABLE holdfast.result ENABLE ALWAYS TRIGGER lingering")
    worker = bench.worker(job, Marking, folder, phase)
    try:
        # In the phase `starting` the signals are spread over the imports.
        signal_at = time.monotonic() + 0.1 + 1.5 * number / times
        until(lambda: _is_in_phase(bench, phase, job, folder, signal_at), within_s=60)
        if phase == ANYWHERE:
            time.sleep(number * 0.618 % 1)  # spread over a micro-batch
        start = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
        seconds = time.monotonic() - start
    finally:
        worker.kill()
        worker.wait()
        if phase == "committing":
            bench.rows("ALTER TABLE holdfast.result DISABLE TRIGGER lingering")
    allowed = {EXIT_PREEMPTED}
    if phase == "starting":
        # A process without its handlers ends by the signal itself; Kubernetes shows 143 as well.
        allowed.add(-signal.SIGTERM)
    assert code in allowed, (phase, code)
    return seconds


def _is_in_phase(
    bench: Bench,
    phase: str,
    job: str,
    folder: Path,
    signal_at: float,
) -> bool:
    started = "SELECT 1 FROM holdfast.worker WHERE job = %s"
    match phase:
        case "starting":
            return time.monotonic() >= signal_at or bool(bench.rows(started, job))
        case "committing":
            return bool(bench.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
        case "idle":
            return bool(bench.rows(started, job))
        case "anywhere":
            return bool(bench.events(job, "stored"))
        case _:
            return (folder / "reached").exists()
