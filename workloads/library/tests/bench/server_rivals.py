"""The same predictor behind LitServe, Ray Serve and BentoML, by the same client in the same run.

Each rival has an environment of its own, made when it is first asked for. One that cannot be installed or started is
a row with the reason. Ours and LitServe take turns, so that both meet the same machine; the median of the turns counts.
"""

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.drill.pods import Pod, owned
from holdfast.drill.serving.fleet import HOST, free_port
from workloads.library.tests.bench.rival_home import CannotRun, home
from workloads.library.tests.bench.server_capacity import BATCH, USERS, url
from workloads.library.tests.bench.server_client import BODY, k6
from workloads.library.tests.inference.server.serving import served

ROOT = Path(__file__).parents[4]
OURS, LITSERVE = "holdfast", "litserve"
STEADY_PER_S = 300.0
"""Of the open loop: a rate that ours and LitServe bear, at which only the waiting differs."""
TURNS = 3
WARM_S = 5.0
_START_S = 120.0
_OWNER = "bench-server-rivals"
_TEXT = json.loads(BODY)["inputs"][0]["data"][0]


@dataclass(frozen=True, kw_only=True)
class Rival:
    words: Callable[[int], Sequence[str]]
    """Port -> what its interpreter runs."""
    body: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def _module(name: str) -> Callable[[int], Sequence[str]]:
    return lambda port: ["-m", f"workloads.library.tests.bench.server_rival_{name}", str(BATCH), str(port)]


ONE = json.dumps({"text": _TEXT})
RIVALS = {
    LITSERVE: Rival(words=_module("litserve"), body=ONE),
    "ray-serve": Rival(words=_module("ray"), body=ONE, env={"RAY_USAGE_STATS_ENABLED": "0"}),
    "bentoml": Rival(
        words=lambda port: [
            *("-m", "bentoml", "serve", "workloads.library.tests.bench.server_rival_bentoml:Model"),
            *("--host", HOST, "--port", str(port)),
        ],
        body=json.dumps({"texts": [_TEXT]}),
        env={"BATCH_ITEMS": str(BATCH), "BENTOML_DO_NOT_TRACK": "true"},
    ),
}


def rivals(folder: Path, *, seconds: float) -> dict[str, Any]:
    """`seconds` for each turn of each server, half with a fixed number of users and half at a fixed rate."""
    turns: dict[str, list[dict[str, float]]] = {OURS: [], **{name: [] for name in RIVALS}}
    reasons: dict[str, str] = {}
    for turn in range(TURNS):
        for name in (OURS, *RIVALS):
            if name in reasons or (turn and name not in (OURS, LITSERVE)):
                continue
            try:
                turns[name].append(_ours(folder, seconds) if name == OURS else _rival(folder, name, seconds))
            except CannotRun as error:
                reasons[name] = str(error)
    figures: dict[str, Any] = {}
    for name, seen in turns.items():
        for key in seen[0] if seen else ():
            figures[f"{name}_{key}"] = round(median(each[key] for each in seen), 1)
    # Without LitServe there is nothing to be judged by.
    unjudged = {"rivals_not_run": reasons[LITSERVE]} if LITSERVE in reasons else {}
    return figures | {f"{name}_not_run": reason for name, reason in reasons.items()} | unjudged


def _ours(folder: Path, seconds: float) -> dict[str, float]:
    with served(folder, "--batch", str(BATCH)) as server:
        return _measured(url(server), BODY, folder, seconds)


def _rival(folder: Path, name: str, seconds: float) -> dict[str, float]:
    rival = RIVALS[name]
    with _started(folder, name, rival) as port:
        return _measured(f"http://{HOST}:{port}/predict", rival.body, folder, seconds)


def _measured(at: str, body: str, folder: Path, seconds: float) -> dict[str, float]:
    half_s = seconds / 2
    k6(at, body=body, seconds=WARM_S, users=USERS, folder=folder)
    full = k6(at, body=body, seconds=half_s, users=USERS, folder=folder)
    steady = k6(at, body=body, seconds=half_s, rate=STEADY_PER_S, folder=folder)
    return {
        "per_s": full.ok / half_s,
        "p99_ms": full.answered_ms.get("p(99)", float("inf")),
        "steady_p99_ms": steady.answered_ms.get("p(99)", float("inf")),
        "failed": float(full.failed + steady.failed),
        "arrivals_not_made": float(steady.dropped),
    }


@contextmanager
def _started(folder: Path, name: str, rival: Rival) -> Generator[int]:
    """Its port, once it has answered a request."""
    python, port = home(name) / "bin" / "python", free_port()
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "workloads" / "library")))
    env = {"PYTHONPATH": paths, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    with owned(_OWNER):
        log = folder / "logs" / f"{name}.log"
        pod = Pod([str(python), *rival.words(port)], log=log, owner=_OWNER, env={**env, **rival.env})
        ends = time.monotonic() + _START_S
        while not _answers(port, rival.body):
            if pod.exit_code is not None or time.monotonic() > ends:
                print(pod.tail(40), file=sys.stderr)
                raise CannotRun(f"did not answer: {pod.tail(1)}")
            time.sleep(0.1)
        yield port


def _answers(port: int, body: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
