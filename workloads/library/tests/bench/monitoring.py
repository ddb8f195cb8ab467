"""A ledger and a report of a million events, and the exporter in a large cluster.

    python -m workloads.library.tests.bench.monitoring

The exporter runs as a separate process. Detection lag lasts from the notice to a pod on a Spot node
until the counter under /metrics rises. --limit is the seconds that a step may take.
"""

import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.clients.api import Api, ApiError
from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.report.capacity import capacities
from holdfast.report.model import build
from holdfast.report.page import render
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.cluster.sim import control_plane, nodes
from tests.cluster.sim.host import Scale
from tests.cluster.sim.processes import free_ports
from tests.cluster.sim.stages import GOING, PREEMPT
from tests.cluster.sim.waiting import until
from workloads.library.tests import sample
from workloads.library.tests.bench.cluster import GANG, count_ready, create, make_world
from workloads.library.tests.bench.result import finish, options

LEDGER_GOAL_S = 5.0
LAG_GOAL_S = 5.0
SUM_GOAL_MS = 1.0
REPORT_GOAL_MB = 1.5
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def million_events(count: int) -> dict[str, float]:
    """Times the reading and the accounting of events of many jobs that are killed and restart."""
    lines = make_lines(count)
    start = time.perf_counter()
    reading = parse(lines)
    read_end = time.perf_counter()
    ledgers = job_ledgers(reading.events)
    ledger_end = time.perf_counter()
    assert not reading.problems
    gaps_us = []
    for ledger in ledgers:
        gaps_us.append(abs(sum(ledger.totals_us.values()) - ledger.wall_us))
    page = render(build(ledgers, reading.problems, {}, capacities(reading.events)))
    return {
        "events": len(lines),
        "jobs": len(ledgers),
        "unsummed_ms": max(gaps_us) / 1e3,
        "report_mb": len(page.encode()) / 1e6,
        "read_s": read_end - start,
        "ledger_s": ledger_end - read_end,
    }


def make_lines(count: int) -> list[bytes]:
    """Repeats the events of one job under other names, as a process belongs to one job only."""
    kills = sample.make_kills(400)
    job_lines = sample.encoded(sample.training("job", total=20_000, every=20, kills=kills))
    text = b"\n".join(job_lines)
    lines: list[bytes] = []
    while len(lines) < count:
        prefix = b"%d-" % len(lines)
        copy = text.replace(b'"job": "', b'"job": "' + prefix)
        copy = copy.replace(b'"process": "', b'"process": "' + prefix)
        lines += copy.split(b"\n")
    return lines[:count]


@contextmanager
def exporter(kubeconfig: Path, *, every_s: float, lines: Path = Path(os.devnull)) -> Iterator[int]:
    """Runs the exporter, yields its port and ends it as a kubelet does; fails if it ends early."""
    (port,) = free_ports(1)
    log = kubeconfig.with_name("exporter.log")
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "export",
        "--kubeconfig",
        str(kubeconfig),
        "--port",
        str(port),
        "--every-s",
        str(every_s),
    ]
    with log.open("wb") as errors, lines.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
    try:
        yield port
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0, log.read_text()[-2000:]


def metrics(port: int) -> dict[str, float]:
    """Returns each metric summed over its series; empty while nothing is served."""
    try:
        with OPENER.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            rows = response.read().decode().splitlines()
    except OSError:
        return {}
    totals = defaultdict[str, float](float)
    for row in rows:
        if row.startswith("holdfast_"):
            series, _, value = row.rpartition(" ")
            totals[series.partition("{")[0].removeprefix("holdfast_")] += float(value)
    return totals


def watch_cluster(count: int, pods: int, losses: int, limit_s: float) -> dict[str, float]:
    with control_plane.running(scale=Scale(lease_s=40, parallelism=8)) as plane:
        kubeconfig = plane.kubeconfig("admin")
        api = Api(kubeconfig)
        world, _ = make_world(api, count, limit_s)
        for n in range(pods // GANG):
            create(world, f"job-{n}")
        with suppress(AssertionError):  # the figure says how many do
            until("pods run", lambda: count_ready(world) >= pods, limit_s)
        running = count_ready(world)
        return measure_lags(api, kubeconfig, losses) | {
            "nodes": count,
            "pods": pods,
            "pods_running": running,
        }


def measure_lags(api: Api, kubeconfig: Path, losses: int) -> dict[str, float]:
    names = set()
    for pod in api.items("/api/v1/pods"):
        names.add(pod["spec"].get("nodeName", ""))
    victims = sorted(names - {""})
    with exporter(kubeconfig, every_s=1.0) as port:
        until(
            "the exporter has seen the cluster",
            lambda: metrics(port).get("exporter_heartbeat_seconds"),
            120,
        )
        lags = []
        for n in range(losses):
            lags.append(lag(api, port, victims[n], n + 1))
        return {
            "lag_p50_s": statistics.median(lags),
            "lag_p99_s": statistics.quantiles(lags, n=100)[98],
        }


def lag(api: Api, port: int, victim: str, expected: int) -> float:
    """Takes a node; returns seconds until the exporter counts it, from before the notice."""
    start = time.monotonic()
    take(api, victim)
    until(
        f"{expected} preemptions are told",
        lambda: metrics(port).get("preemptions_total", 0) >= expected,
        60,
    )
    lag_s = time.monotonic() - start
    nodes.remove(api, [victim])
    return lag_s


def take(api: Api, victim: str) -> None:
    """Gives a node its notice, then ends its pods.

    Only these pods are listed: a list of five thousand would take longer than the lag.
    """
    api.merge(
        f"{nodes.NODES}/{victim}",
        {
            "metadata": {"labels": {GOING: "true"}},
            "spec": {"unschedulable": True},
        },
    )
    for pod in api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={victim}"):
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        with suppress(ApiError):  # gone by itself
            api.merge(path, {"metadata": {"annotations": {PREEMPT: str(EXIT_PREEMPTED)}}})


def main() -> None:
    args = options(
        __doc__,
        events=1_000_000,
        nodes=1000,
        pods=5000,
        losses=100,
        limit=240.0,
    )
    ledger = million_events(args.events)
    cluster: dict[str, float] = {}
    if args.nodes:
        cluster = watch_cluster(args.nodes, args.pods, args.losses, args.limit)
    goals = {
        "ledger_of_a_million_events_under_5_s": ledger["ledger_s"] < LEDGER_GOAL_S,
        "states_sum_to_wall_time_within_1_ms": ledger["unsummed_ms"] < SUM_GOAL_MS,
        "report_under_1.5_mb": ledger["report_mb"] < REPORT_GOAL_MB,
    }
    if cluster:
        goals["detection_lag_p99_under_5_s"] = cluster["lag_p99_s"] < LAG_GOAL_S
    finish({"bench": "monitoring", "figures": ledger | cluster}, goals)


if __name__ == "__main__":
    main()
