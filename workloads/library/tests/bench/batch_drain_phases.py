"""SIGTERM in each phase of a worker process, from its first import to an idle queue: seconds until it is gone.

`predicting`: a micro-batch of the longest that the sizer allows, one second.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value
from holdfast.report.capacity import at
from workloads.library.tests.bench.batch_harness import Bench, start_command
from workloads.library.tests.processes import until

FOR_EVER_S = 600.0
PHASES = ("starting", "loading", "loading_again", "predicting", "committing", "idle")
_SLOW_COMMIT = """
CREATE OR REPLACE FUNCTION public.linger() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER lingering AFTER UPDATE ON holdfast.result
FOR EACH STATEMENT EXECUTE FUNCTION public.linger();
"""


@dataclass
class Marking:
    """Leaves a file at each start of its phase, `spec.run`, in the folder `spec.model`."""

    folder: Path
    phase: str

    @property
    def configuration(self) -> Mapping[str, object]:
        return {"predictor": "marking"}

    def load(self) -> None:
        loads = len(list(self.folder.glob("load-*")))
        (self.folder / f"load-{loads}").touch()
        if (self.phase, loads) in (("loading", 0), ("loading_again", 1)):
            (self.folder / "reached").touch()
            time.sleep(FOR_EVER_S)

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        if self.phase == "loading_again":
            os._exit(3)
        if self.phase == "predicting":
            (self.folder / "reached").touch()
            time.sleep(1.0)
        return [{"score": len(body)} for body in bodies]


def marking(spec: PredictorSpec) -> Marking:
    return Marking(Path(spec.model), spec.run)


def drain_phases(bench: Bench, times: int) -> dict[str, Any]:
    bench.connection.execute(_SLOW_COMMIT)
    bench.connection.execute("ALTER TABLE holdfast.result DISABLE TRIGGER lingering")
    bench.connection.commit()
    figures: dict[str, Any] = {}
    for phase in PHASES:
        seconds = sorted(_drain(bench, phase, number, times) for number in range(times))
        figures[f"drain_{phase}_p50_s"] = round(at(seconds, 50), 2)
        figures[f"drain_{phase}_p99_s"] = round(at(seconds, 99), 2)
    figures["drain_phases_worst_p99_s"] = max(figures[f"drain_{phase}_p99_s"] for phase in PHASES)
    return figures


def _drain(bench: Bench, phase: str, number: int, times: int) -> float:
    job = f"drain-{phase.replace('_', '-')}-{number}"
    folder = bench.folder / job
    folder.mkdir()
    bench.fill(job, 200)
    if phase == "idle":
        _execute(bench, "DELETE FROM holdfast.queue WHERE job = %s", job)
    if phase == "committing":
        _execute(bench, "ALTER TABLE holdfast.result ENABLE ALWAYS TRIGGER lingering")
    predictor = ("--predictor", f"{__name__}:marking", "--model", str(folder), "--run", phase)
    worker = start_command(bench, "run", job, *predictor, "--events", str(bench.folder / f"{job}.jsonl"))
    try:
        if phase == "starting":
            signal_at = time.monotonic() + 0.1 + 1.5 * number / times  # spread over imports
            until(lambda: time.monotonic() >= signal_at or _is_known(bench, job), within_s=60)
        else:
            until(lambda: _reached(bench, phase, job, folder), within_s=60)
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
        seconds = time.monotonic() - began
    finally:
        worker.kill()
        worker.wait()
        if phase == "committing":
            _execute(bench, "ALTER TABLE holdfast.result DISABLE TRIGGER lingering")
    # Before its handlers stand a process ends by the signal itself, which Kubernetes shows as the same 143.
    assert code in ((EXIT_PREEMPTED, -signal.SIGTERM) if phase == "starting" else (EXIT_PREEMPTED,)), (phase, code)
    return seconds


def _reached(bench: Bench, phase: str, job: str, folder: Path) -> bool:
    if phase == "committing":
        return bool(_execute(bench, "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
    if phase == "idle":
        return _is_known(bench, job)
    return (folder / "reached").exists()


def _is_known(bench: Bench, job: str) -> bool:
    """The worker has told the database of itself: its start is over."""
    return bool(_execute(bench, "SELECT FROM holdfast.worker WHERE job = %s", job))


def _execute(bench: Bench, query: Any, *parameters: object) -> int:
    count = bench.connection.execute(query, parameters).rowcount
    bench.connection.commit()
    return count
