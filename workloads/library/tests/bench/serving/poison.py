"""Requests that crash or hang the model, a few seconds apart, next to good ones."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from pathlib import Path
from typing import Any

from holdfast.drill.serving.fleet import HOST
from holdfast.drill.serving.load import Load
from workloads.library.tests.bench.serving.drains import REPLICAS, Fleet, make_fleet
from workloads.library.tests.inference.server.serving import INFER, Client, texts

Figures = dict[str, Any]
INTERVAL_S = 3.0
TIMES = 100
DEATHS = "holdfast_server_predictor_deaths_total"
GOOD_BODY = texts("good request NUMBER")


def poison(folder: Path, *, rate: float, seconds: float) -> Figures:
    """Sends the same and ever new requests that kill or hang the model, and one of them often."""
    figures: Figures = {
        "rate": rate,
        "interval_s": INTERVAL_S,
        "times": TIMES,
    }
    for fault in ("kill", "hang"):
        for name, texts_of_run in (("same", repeat(fault)), ("new", _make_texts(fault))):
            run = _send_under_load(
                folder,
                f"{name}_{fault}s",
                texts_of_run,
                rate,
                seconds,
            )
            figures[f"{name}_{fault}s"] = run
        figures[f"often_{fault}"] = _send_often(folder, fault)
    return {"poison": figures}


def _make_texts(fault: str) -> Iterator[str]:
    """Makes ever new requests with this fault."""
    return (f"{fault} {number}" for number in count())


def _send_under_load(
    folder: Path,
    name: str,
    poisoned_texts: Iterator[str],
    rate: float,
    seconds: float,
) -> Figures:
    fleet = make_fleet(folder, f"poison-{name}")
    codes = Counter[str]()
    with fleet.running(REPLICAS), ThreadPoolExecutor(32) as pool:
        load = Load(HOST, fleet.port, INFER, GOOD_BODY)

        def send(text: str) -> None:
            codes[str(Client(fleet.port).infer(text).status)] += 1

        with load.asking(rate):
            for _ in range(round(seconds / INTERVAL_S)):
                time.sleep(INTERVAL_S)  # a schedule, not a wait for a condition
                pool.submit(send, next(poisoned_texts))
            time.sleep(INTERVAL_S)
        pool.shutdown()
        loads = _count_deaths(fleet)
    latencies = sorted(load.seconds)
    return {
        "posts": load.requests,
        "failed": load.failures,
        "answered": round(1 - load.failures / load.requests, 4),
        "codes": dict(load.codes),
        "p99_ms": round(1000 * latencies[int(0.99 * len(latencies))], 1),
        "poisoned": codes.total(),
        "poisoned_codes": dict(codes),
        "loads": loads,
    }


def _send_often(folder: Path, fault: str) -> Figures:
    """Sends one poisoned body TIMES times, each after the answer to the one before."""
    fleet = make_fleet(folder, f"poison-often-{fault}")
    with fleet.running(REPLICAS):
        codes = Counter[str]()
        for _ in range(TIMES):
            codes[str(Client(fleet.port).infer(fault).status)] += 1
        deaths = _count_deaths(fleet)
    return {"loads": deaths, "codes": dict(codes)}


def _count_deaths(fleet: Fleet) -> int:
    return sum(int(Client(replica.port).metric(DEATHS)) for replica in fleet.replicas)
