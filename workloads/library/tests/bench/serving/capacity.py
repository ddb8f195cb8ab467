"""Batching, overload, and the same predictor behind LitServe, with one server and no proxy.

LitServe is installed in a separate environment when it is first needed. Both servers take turns, so
that both meet the same machine; the median of the turns counts.
"""

import http.client
import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.drill.serving.fleet import HOST, free_port
from workloads.library.tests.bench.result import collect_columns
from workloads.library.tests.bench.rival_home import CannotRun, home
from workloads.library.tests.bench.serving.client import BODY, INFER, k6
from workloads.library.tests.inference.server.playing_predictors import BATCH_S, ITEM_S
from workloads.library.tests.inference.server.serving import Client, Served, running, serve
from workloads.library.tests.processes import kill_family, rss_mib, sampled, until

Figures = dict[str, Any]
ROOT = Path(__file__).parents[5]
BATCH = 32
USERS = 4 * BATCH
"""Users of the batching.

With two batches of users the next batch is full only if clients come back within one batch, which
would measure the client's speed.
"""
OVERLOAD = 3.0
DEADLINE_S = 4.0
SCALE = 32.0
"""The factor on the predictor's time in the overload: the model must be the limit, not cores."""
OURS = "holdfast"
LITSERVE = "litserve"
STEADY_PER_S = 300.0
"""The rate of the open loop, which both servers sustain, so that only the waiting differs."""
TURNS = 3
WARM_S = 5.0
_START_S = 120.0
_FIRST_INPUT = json.loads(BODY)["inputs"][0]
ONE = json.dumps({"text": _FIRST_INPUT["data"][0]})


def url(server: Served) -> str:
    return f"http://127.0.0.1:{server.port}{INFER}"


def batching(folder: Path, *, seconds: float) -> Figures:
    """Measures the same users and predictor with batches of 32, and one at a time."""
    figures: Figures = {}
    for name, batch in (("batched", BATCH), ("single", 1)):
        with serve(folder, "--batch", str(batch)) as server:
            counted = k6(url(server), seconds=seconds, users=USERS, folder=folder)
            figures[f"{name}_per_s"] = round(counted.ok / seconds, 1)
            figures[f"{name}_p99_ms"] = counted.answered_ms.get("p(99)")
    figures["batching_factor"] = round(figures["batched_per_s"] / figures["single_per_s"], 2)
    return figures


def overload(folder: Path, *, seconds: float) -> Figures:
    batch_s = SCALE * (BATCH_S + ITEM_S * BATCH)
    capacity = BATCH / batch_s
    options = ("--model", str(SCALE), "--longest-request", str(DEADLINE_S), "--batch", str(BATCH))
    with (
        serve(folder, *options) as server,
        sampled(lambda: rss_mib(server.process.pid), 0.5) as samples,
    ):
        counted = k6(
            url(server),
            rate=OVERLOAD * capacity,
            seconds=seconds,
            users=1000,
            folder=folder,
        )
    # Growth counts after the first tenth: by then every buffer has been used once.
    count = len(samples)
    growth_mib = max(samples[-count // 2 :]) - samples[count // 10]
    return {
        "overload_answered_share": round(counted.ok / seconds / capacity, 3),
        "overload_bound_ms": round(1000 * (DEADLINE_S + batch_s)),
        "overload_answered_p99_ms": counted.answered_ms.get("p(99)"),
        "overload_refused_p99_ms": counted.refused_ms.get("p(99)"),
        "overload_codes": counted.codes,
        # Requests that were accepted and then timed out: neither answered nor refused at once.
        "overload_late_share": round(counted.codes.get("504", 0) / counted.total, 4),
        "overload_dropped": counted.dropped,
        "overload_rss_growth_mib": round(growth_mib, 1),
    }


def rivals(folder: Path, *, seconds: float) -> Figures:
    """Measures turns of `seconds` for each server, half with fixed users, half at a fixed rate."""
    turns: dict[str, list[dict[str, float]]] = {OURS: [], LITSERVE: []}
    try:
        for _ in range(TURNS):
            with serve(folder, "--batch", str(BATCH)) as server:
                turns[OURS].append(_measure(url(server), BODY, folder, seconds))
            rival = litserve()
            with running_rival(rival, folder):
                turns[LITSERVE].append(_measure(rival.url, ONE, folder, seconds))
    except CannotRun as error:  # the goals need LitServe
        return {"rivals_not_run": str(error)}
    figures = {}
    for name, samples in turns.items():
        for key, values in collect_columns(samples).items():
            figures[f"{name}_{key}"] = round(median(values), 1)
    return figures


def _measure(address: str, body: str, folder: Path, seconds: float) -> dict[str, float]:
    half_s = seconds / 2
    load = partial(k6, address, body=body, folder=folder)
    load(seconds=WARM_S, users=USERS)
    full = load(seconds=half_s, users=USERS)
    steady = load(seconds=half_s, rate=STEADY_PER_S)
    return {
        "per_s": full.ok / half_s,
        "p99_ms": full.answered_ms.get("p(99)", float("inf")),
        "steady_p99_ms": steady.answered_ms.get("p(99)", float("inf")),
    }


@dataclass(frozen=True)
class Rival:
    """Another server of the same predictor: its command, and a request that it answers."""

    name: str
    command: list[str]
    port: int
    path: str
    body: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{self.path}"


def litserve() -> Rival:
    """Raises CannotRun if LitServe cannot be installed."""
    python = home(LITSERVE) / "bin" / "python"
    port = free_port()
    module = f"{__package__}.rival_litserve"
    command = [str(python), "-m", module, str(BATCH), str(port)]
    return Rival(LITSERVE, command, port, "/predict", ONE)


def bare_batcher(batch_items: int = BATCH) -> Rival:
    port = free_port()
    module = f"{__package__}.bare_batcher"
    command = [sys.executable, "-m", module, str(batch_items), str(port)]
    return Rival("bare", command, port, INFER, BODY)


@contextmanager
def running_rival(rival: Rival, folder: Path) -> Generator[int]:
    """Runs a server and yields its process id once it has answered a request.

    Raises CannotRun if it does not answer.
    """
    library = ROOT / "workloads" / "library"
    paths = f"{ROOT}{os.pathsep}{library}"
    programs = Path(rival.command[0]).parent
    env = os.environ | {
        "PYTHONPATH": paths,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    log = folder / f"{rival.name}.log"
    with log.open("wb") as out, running(rival.command, out, env) as process:
        try:
            until(
                lambda: _answers(rival),
                alive=lambda: process.poll() is None,
                within_s=_START_S,
                pause_s=0.1,
            )
            yield process.pid
        except (TimeoutError, ChildProcessError):
            raise CannotRun(f"did not answer: {log.read_text(errors='replace')[-1000:]}") from None
        finally:
            kill_family(process.pid)


def _answers(rival: Rival) -> bool:
    headers = {"Content-Type": "application/json"}
    try:
        response = Client(rival.port).request("POST", rival.path, rival.body.encode(), headers)
    except (OSError, http.client.HTTPException):
        return False
    return response.status == 200
