"""Stops of a training of an adapter on an 8B base, each by SIGTERM and with a window of 15 s.

All are stops of one run: each start restores what the stop before it saved, trains, and saves every
few seconds to a store with a total rate of 100 MB/s. The signal comes at moments that are spread
evenly over the interval between two saves, so more than half of them meet an upload. A process that
lives on at the end of its window is killed, as the kubelet does.

What it stands for: state and bytes are those of rank 16 on all linear layers of Llama 3 8B with
Adam's moments, 16 GB and 503 MB. The base is in host memory, and is digested there before each
save. On a GPU it is copied to the staging memory instead (infra/decisions/0175), by a bus of tens
of GB/s, and digested there by other cores; that is not measured here. A step trains one of the 32
blocks, on 4 rows. The store is a folder whose rate is limited, on the disk of this machine; it is
not a bucket, and holds the equal shards of the base once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from holdfast.report.capacity import percentile
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from workloads.library.tests import distribution
from workloads.library.tests.bench.checkpoints import throttled
from workloads.library.tests.bench.checkpoints.lora_model import Sizes
from workloads.library.tests.processes import family, held, kill_family, sampled

ROOT = Path(__file__).parents[5]
RUN = "adapter"
INTERVAL_S = 8.0
"""Time between two saves. An upload of an 8B adapter takes 5 s of it."""
FREE_BYTES = 5_000_000_000
"""Memory that stays free for other processes of the machine."""
PROCESS_BYTES = 4_000_000_000
GOAL = "last_save_of_an_8b_adapter_fits_15_s_in_every_stop"

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Stop:
    phase_s: float
    """Time of the signal after the beginning of a save."""
    seconds: float
    """Time between the signal and the end of the process."""
    start_s: float
    """Time between the start of the process and its first step."""
    restore_s: float
    step: int
    lost_steps: int
    restored_equal: bool
    """True if this start got the step and bits that the stop before it had."""
    code: int
    blocking_s: float = 0.0
    written_bytes: int = 0
    peak_bytes: int = 0

    @property
    def fits(self) -> bool:
        is_whole = self.lost_steps == 0 and self.restored_equal
        return is_whole and self.code == EXIT_PREEMPTED and self.seconds <= DEFAULT_WINDOW.pod_s


class Bench:
    def __init__(self, folder: Path, sizes: Sizes, mb_per_s: float) -> None:
        self._folder = folder / "store"
        self._sizes = sizes
        self._mb_per_s = mb_per_s
        packages = folder / "packages"
        packages.mkdir()
        source = '"""The store is a module of the benches."""\n'
        distribution.install(
            packages, "holdfast-throttled", source, "holdfast.stores", throttled.ENTRY_POINT
        )
        paths = [str(packages), str(ROOT), str(ROOT / "workloads/library")]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._before: Event = {}
        """The last event of the previous start."""

    def _start(self, module: str, settings: dict[str, Any]) -> "subprocess.Popen[str]":
        settings |= asdict(self._sizes) | {"run": RUN}
        quiet = None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"workloads.library.tests.bench.checkpoints.{module}",
                json.dumps(settings),
            ],
            cwd=self._folder.parent,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=quiet,
            text=True,
        )

    def prepare(self) -> Event:
        """Writes the first checkpoint, and returns the sizes of base and adapter."""
        with self._start("lora_first", {"folder": str(self._folder)}) as process:
            out, _ = process.communicate()
        if process.returncode:
            raise SystemExit("no first checkpoint; BENCH_VERBOSE=1 shows why")
        return json.loads(out)

    def stop(self, phase_s: float, *, watch_memory: bool) -> Stop:
        """Starts the training, and stops it `phase_s` after the beginning of a save."""
        settings = {
            "url": f"{throttled.SCHEME}://{self._folder}?mb_per_s={self._mb_per_s}",
            "every": f"{INTERVAL_S:g}s",
        }
        started_at = time.monotonic()
        with self._start("lora_job", settings) as process:
            try:
                # Sampling costs processor time for each page, which the process then lacks.
                look = partial(_sample_memory, process.pid if watch_memory else 0)
                with sampled(look, 2.0) as samples:
                    events = self._wait_for_save(process)
                    time.sleep(phase_s)
                    signaled_at = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(DEFAULT_WINDOW.pod_s)
                    seconds = time.monotonic() - signaled_at
            finally:
                kill_family(process.pid)
            out, _ = process.communicate()
        events += [json.loads(line) for line in out.splitlines()]
        restored = next(event for event in events if event["event"] == "restored")
        before = self._before
        self._before = events[-1]
        end = events[-1] if events[-1]["event"] == "stopped" else {}
        is_first = not before
        same_step = is_first or restored["step"] == before.get("step")
        return Stop(
            phase_s=phase_s,
            seconds=seconds,
            start_s=restored["at"] - started_at,
            restore_s=restored["seconds"],
            step=end.get("step", 0),
            lost_steps=end["step"] - end["durable_step"] if end else -1,
            restored_equal=is_first or (same_step and restored["digest"] == before.get("digest")),
            code=process.returncode,
            blocking_s=end.get("blocking_s", 0.0),
            written_bytes=end.get("written_bytes", 0),
            peak_bytes=max(samples, default=0),
        )

    def _wait_for_save(self, process: "subprocess.Popen[str]") -> list[Event]:
        events: list[Event] = []
        assert process.stdout is not None
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "saved":
                return events
        raise SystemExit("the training ended before its first save; BENCH_VERBOSE=1 shows why")


def _sample_memory(pid: int) -> int:
    return 0 if not pid else held([process.pid for process in family(pid)])


def measure_stops(
    folder: Path,
    *,
    stops: int,
    layers: int,
    width: int,
    mb_per_s: float,
) -> dict[str, Any]:
    available = psutil.virtual_memory().available
    if available < FREE_BYTES + PROCESS_BYTES:
        raise SystemExit(
            f"lora-8b: got {available / 1e9:.1f} GB of available memory; allowed: at least"
            f" {(FREE_BYTES + PROCESS_BYTES) / 1e9:.0f} GB; fix: end other programs"
        )
    bench = Bench(folder, Sizes(layers=layers, width=width), mb_per_s)
    sizes = bench.prepare()
    began_at = time.monotonic()
    records: list[Stop] = []
    for number in range(stops):
        record = bench.stop(INTERVAL_S * number / stops, watch_memory=number == 0)
        records.append(record)
        print(json.dumps(asdict(record)), file=sys.stderr, flush=True)
    minutes = (time.monotonic() - began_at) / 60
    return sizes | summarize(records) | {"mb_per_s": mb_per_s, "minutes": round(minutes, 1)}


def summarize(records: list[Stop]) -> dict[str, Any]:
    seconds = sorted(record.seconds for record in records)
    return {
        "stops": len(records),
        "fit": sum(record.fits for record in records),
        "lost_steps": sum(max(0, record.lost_steps) for record in records),
        "seconds_p50": round(percentile(seconds, 50), 2),
        "seconds_p99": round(percentile(seconds, 99), 2),
        "seconds_max": round(seconds[-1], 2),
        "written_bytes_max": max(record.written_bytes for record in records),
        "blocking_s_p50": round(median(record.blocking_s for record in records), 2),
        "start_s_p50": round(median(record.start_s for record in records), 2),
        "restore_s_p50": round(median(record.restore_s for record in records), 2),
        "peak_bytes_max": max(record.peak_bytes for record in records),
    }


def judge_stops(figures: dict[str, Any]) -> dict[str, bool]:
    return {GOAL: figures["stops"] >= 100 and figures["fit"] == figures["stops"]}
