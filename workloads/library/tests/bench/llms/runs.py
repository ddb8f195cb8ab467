"""The runs of `make bench-llm`: disturbed, the same servers alone, and with Envoy."""

import asyncio
import json
import math
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from holdfast.drill.serving.fleet import free_port
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, Proxy, bootstrap
from workloads.library.tests.bench.llms.clients import Tally, run_streams
from workloads.library.tests.bench.llms.engines import Engines
from workloads.library.tests.inference.router.fleet import metric, router
from workloads.library.tests.inference.server.serving import Served, envoy
from workloads.library.tests.processes import MIB, sampled, until

Figures = dict[str, Any]
HOST = "127.0.0.1"
SHORTEST_S = 5.0
LONGEST_S = 120.0
TOKENS_PER_S = 1.0
"""The rate of a stream before it is scaled, which two cores carry for engines and client."""
ENGINES = 4
PREFILL_S = 0.1
DRAIN_S = 3.0
CALM_STREAMS = 24
"""The open streams where rates are compared: few enough that the machine is not the limit."""
_SAMPLE_S = 1.0
_TURNS = 3


@dataclass(frozen=True, kw_only=True)
class Load:
    factor: float
    streams_open: int

    @property
    def tokens_per_s(self) -> float:
        return TOKENS_PER_S * self.factor

    def draw_tokens(self, generator: random.Random) -> int:
        return round(generator.uniform(SHORTEST_S, LONGEST_S) * TOKENS_PER_S)

    def describe(self) -> dict[str, float]:
        return {
            "time_factor": self.factor,
            "streams_open": self.streams_open,
            "tokens_per_s_of_a_stream": self.tokens_per_s,
            "engines": ENGINES,
            "prefill_s": PREFILL_S,
        }

    def engines(self, folder: Path) -> Engines:
        return Engines(
            folder,
            count=ENGINES,
            tokens_per_s=self.tokens_per_s,
            factor=self.factor,
        )

    def router(self, folder: Path, engines: Engines) -> Any:
        drain = f"drain_s={DRAIN_S / self.factor:g}"
        return router(folder, "--set", drain, servers=engines.servers)

    def run(self, ports: list[int], streams: int, **options: Any) -> Tally:
        return asyncio.run(
            run_streams(
                ports,
                streams=streams,
                streams_open=self.streams_open,
                draw_tokens=self.draw_tokens,
                **options,
            )
        )

    def run_with_disruptions(
        self,
        ports: list[int],
        engines: Engines,
        streams: int,
        disruptions: int,
    ) -> Tally:
        """Runs streams; disruptions are spread evenly over their ends."""
        every = max(1, streams // (disruptions + 1))
        count_asked = 0

        def on_end(count: int) -> None:
            nonlocal count_asked
            if count % every == 0 and count_asked < disruptions:
                count_asked += 1
                engines.disrupt()

        return self.run(ports, streams, on_end=on_end)


def run_disturbed(folder: Path, load: Load, *, streams: int, disruptions: int) -> Figures:
    with load.engines(folder) as engines, load.router(folder, engines) as served:
        # It fills memory, and shows the gaps that the machine itself makes.
        calm = load.run([served.port], min(streams, 4 * load.streams_open))
        process = psutil.Process(served.process.pid)
        rss = sampled(lambda: process.memory_info().rss / MIB, _SAMPLE_S)
        with rss as sizes, _cpu(served) as used:
            tally = load.run_with_disruptions([served.port], engines, streams, disruptions)
        moved = round(metric(served, "holdfast_router_moved_total"))
        causes = _count_by_label(served, "holdfast_router_moved_total")
        error_count = round(metric(served, "holdfast_router_ended_total"))
        played = engines.disruptions
        seams = _read_quantile(served, "holdfast_router_seam_seconds", 0.99)
    gaps = tally.longest_gaps(moved)
    calm_gap_s = _percentile_99(calm.longest_gaps(len(calm.results)))
    quarter = max(1, len(sizes) // 4)
    return {
        **tally.count(),
        "seconds": round(tally.seconds, 1),
        "streams_open": load.streams_open,
        "tokens_per_s": round(tally.tokens / tally.seconds),
        "tokens_per_s_asked": round(load.streams_open * load.tokens_per_s),
        "disruptions": played,
        "disruptions_wanted": disruptions,
        "moved": moved,
        "moved_by_cause": causes,
        "ended_with_an_error": error_count,
        "gap_p50_s": round(median(gaps), 3) if gaps else 0.0,
        "gap_p99_s": round(_percentile_99(gaps), 3),
        "gap_max_s": round(max(gaps, default=0.0), 3),
        "gap_p99_undisturbed_s": round(calm_gap_s, 3),
        "gap_p99_added_s": round(_percentile_99(gaps) - calm_gap_s, 3),
        "router_seam_p99_s_at_most": seams,
        "router_cpu_s_per_1000_tokens": _per_1000(used[0], tally),
        "router_rss_mib": round(median(sizes[-quarter:])),
        "router_growth_mib": round(median(sizes[-quarter:]) - median(sizes[:quarter]), 1),
    }


def run_throughput(folder: Path, load: Load, *, streams: int) -> Figures:
    """Runs the same streams at the engines and through the router, in turns."""
    tokens = {"alone": 0, "router": 0}
    seconds = {"alone": 0.0, "router": 0.0}
    overheads: dict[str, list[float]] = {"alone": [], "router": []}
    wrong = 0
    cpu_s = 0.0
    calm = replace(load, streams_open=CALM_STREAMS)
    with load.engines(folder) as engines, load.router(folder, engines) as served:
        ports = {
            "alone": engines.ports,
            "router": [served.port],
        }
        for turn in range(2 * _TURNS):
            name = ("alone", "router")[turn % 2]
            with _cpu(served) as used:
                tally = calm.run(ports[name], streams)
            tokens[name] += tally.tokens
            seconds[name] += tally.seconds
            for result in tally.results:
                overheads[name].append(result.seconds - result.tokens / load.tokens_per_s)
            wrong += tally.count()["cut"] + tally.count()["streams_different"]
            if name == "router":
                cpu_s += used[0]
    alone = tokens["alone"] / seconds["alone"]
    router = tokens["router"] / seconds["router"]
    return {
        "tokens_per_s_alone": round(alone),
        "tokens_per_s_router": round(router),
        "share": round(router / alone, 3),
        "stream_added_ms": round(1000 * (median(overheads["router"]) - median(overheads["alone"]))),
        "streams_wrong": wrong,
        "router_cpu_s_per_1000_tokens": round(1000 * cpu_s / tokens["router"], 4),
    }


def run_envoy_alone(folder: Path, load: Load, *, streams: int, disruptions: int) -> Figures:
    """Runs streams through Envoy as it is rendered, without the router."""
    with load.engines(folder) as engines:
        with _proxy(folder, engines.ports) as port:
            tally = load.run_with_disruptions([port], engines, streams, disruptions)
        return {**tally.count(), "disruptions": engines.disruptions}


def run_behind_envoy(folder: Path, load: Load, *, streams: int) -> Figures:
    """Runs streams through Envoy and the router behind it: what each of them costs."""
    with load.engines(folder) as engines, load.router(folder, engines) as served:
        direct = load.run([served.port], streams)
        with _proxy(folder, [served.port]) as port:
            proxy = _find_child("envoy")
            with _cpu(served) as used, _measure_cpu(proxy) as envoy_used:
                tally = load.run([port], streams)
        return {
            **tally.count(),
            "tokens_per_s": round(tally.tokens / tally.seconds),
            "tokens_per_s_without_envoy": round(direct.tokens / direct.seconds),
            "router_cpu_s_per_1000_tokens": _per_1000(used[0], tally),
            "envoy_cpu_s_per_1000_tokens": _per_1000(envoy_used[0], tally),
        }


@contextmanager
def _proxy(folder: Path, ports: list[int]) -> Generator[int]:
    endpoints = folder / f"endpoints-{free_port()}.json"
    addresses = [Endpoint(address=HOST, port=port) for port in ports]
    write(endpoints, discovery(CLUSTER, addresses))
    proxy = Proxy(
        endpoints_file=str(endpoints),
        longest_request_s=7.0,
        host=HOST,
        port=free_port(),
        admin_port=free_port(),
        metrics_port=free_port(),
    )
    config = folder / "envoy.json"
    config.write_text(json.dumps(bootstrap(proxy)))
    with envoy(config, proxy.admin_port) as count_healthy:
        until(lambda: count_healthy() == len(ports), "healthy servers")
        yield proxy.port


@contextmanager
def _cpu(served: Served) -> Generator[list[float]]:
    with _measure_cpu(psutil.Process(served.process.pid)) as used:
        yield used


@contextmanager
def _measure_cpu(process: psutil.Process) -> Generator[list[float]]:
    """Yields a list that has the CPU seconds of the block after its end."""
    before = process.cpu_times()
    used: list[float] = []
    yield used
    after = process.cpu_times()
    used.append(after.user + after.system - before.user - before.system)


def _find_child(name: str) -> psutil.Process:
    for process in psutil.Process().children(recursive=True):
        if process.name() == name:
            return process
    raise LookupError(name)


def _per_1000(cpu_s: float, tally: Tally) -> float:
    return round(1000 * cpu_s / max(1, tally.tokens), 4)


def _percentile_99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else 0.0


def _read_quantile(served: Served, name: str, quantile: float) -> float:
    """Returns the upper bound of the bucket of a histogram in which the quantile is."""
    buckets: list[tuple[float, float]] = []
    total = 0.0
    for line in served.request("GET", "/metrics").body.decode().splitlines():
        if line.startswith(name + "_bucket"):
            bound = float(line.partition('le="')[2].partition('"')[0])
            count = float(line.split()[-1])
            total = max(total, count)
            buckets.append((bound, count))
    for bound, count in sorted(buckets):
        if count >= quantile * total:
            return bound
    return math.inf


def _count_by_label(served: Served, name: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in served.request("GET", "/metrics").body.decode().splitlines():
        if line.startswith(name + "{"):
            label = line.partition('"')[2].partition('"')[0]
            counts[label] = round(float(line.split()[-1]))
    return counts
