"""`python -m workloads.library.tests.bench.monitoring`: a ledger and a report of a million events,
and the exporter beside a large cluster.

The exporter runs as a process of its own. Detection lag is from the notice to a pod on a Spot node
until the counter under /metrics rises. --limit: seconds that a step may take.
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
from workloads.library.tests.bench.cluster import GANG, create, ready_pods, world_of
from workloads.library.tests.bench.result import ended, options

LEDGER_GOAL_S = 5.0
LAG_GOAL_S = 5.0
SUM_GOAL_MS = 1.0
REPORT_GOAL_MB = 1.5
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def million_events(count: int) -> dict[str, float]:
    """Lines of many jobs that are killed and come back; reading and accounting timed apart."""
    kills = tuple((10.0 + n % 7, "SIGKILL" if n % 2 else "SIGTERM") for n in range(400))
    one = sample.encoded(sample.training("job", total=20_000, every=20, kills=kills))
    text = b"\n".join(one)
    lines: list[bytes] = []
    while len(lines) < count:
        # a process is of one job only: its clock is followed through the file
        name = b"%d-" % len(lines)
        named = text.replace(b'"job": "', b'"job": "' + name).replace(
            b'"process": "', b'"process": "' + name
        )
        lines += named.split(b"\n")
    lines = lines[:count]
    began = time.perf_counter()
    reading = parse(lines)
    read = time.perf_counter()
    found = job_ledgers(reading.events)
    done = time.perf_counter()
    assert not reading.problems
    unsummed_us = max(abs(sum(x.totals_us.values()) - x.wall_us) for x in found)
    page = render(build(found, reading.problems, {}, capacities(reading.events)))
    sizes = {
        "events": len(lines),
        "jobs": len(found),
        "unsummed_ms": unsummed_us / 1e3,
    }
    return sizes | {
        "report_mb": len(page.encode()) / 1e6,
        "read_s": read - began,
        "ledger_s": done - read,
    }


@contextmanager
def exporter(kubeconfig: Path, *, every_s: float, lines: Path = Path(os.devnull)) -> Iterator[int]:
    """Its port. Ends it as a kubelet does, and fails where it did not stay until then."""
    (port,), log = free_ports(1), kubeconfig.with_name("exporter.log")
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "export",
        "--kubeconfig",
        str(kubeconfig),
    ]
    command += [
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
    """Summed over their series; empty while nothing is served."""
    try:
        with OPENER.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            rows = []
            for row in answer.read().decode().splitlines():
                if row.startswith("holdfast_"):
                    rows.append(row.rpartition(" "))
    except OSError:
        return {}
    found = defaultdict[str, float](float)
    for name, _, value in rows:
        found[name.partition("{")[0].removeprefix("holdfast_")] += float(value)
    return found


def beside_a_cluster(count: int, pods: int, losses: int, limit_s: float) -> dict[str, float]:
    with control_plane.running(scale=Scale(lease_s=40, parallelism=8)) as plane:
        kubeconfig = plane.kubeconfig("admin")
        api = Api(kubeconfig)
        world, _ = world_of(api, count, limit_s)
        for n in range(pods // GANG):
            create(world, f"job-{n}")
        with suppress(AssertionError):  # the figure says how many do
            until("pods run", lambda: ready_pods(world) >= pods, limit_s)
        running = ready_pods(world)
        return measured(api, kubeconfig, losses) | {
            "nodes": count,
            "pods": pods,
            "pods_running": running,
        }


def measured(api: Api, kubeconfig: Path, losses: int) -> dict[str, float]:
    victims = sorted(
        {
            pod["spec"]["nodeName"]
            for pod in api.items("/api/v1/pods")
            if pod["spec"].get("nodeName")
        }
    )
    with exporter(kubeconfig, every_s=1.0) as port:
        until(
            "the exporter has seen the cluster",
            lambda: metrics(port).get("exporter_heartbeat_seconds"),
            120,
        )
        lags = [lag(api, port, victims[n], n + 1) for n in range(losses)]
        return {
            "lag_p50_s": statistics.median(lags),
            "lag_p99_s": statistics.quantiles(lags, n=100)[98],
        }


def lag(api: Api, port: int, victim: str, expected: int) -> float:
    """One node is taken; the clock starts before the notice is written."""
    began = time.monotonic()
    take(api, victim)
    until(
        f"{expected} preemptions are told",
        lambda: metrics(port).get("preemptions_total", 0) >= expected,
        60,
    )
    seen = time.monotonic() - began
    nodes.remove(api, [victim])
    return seen


def take(api: Api, victim: str) -> None:
    """The notice, then its pods. Only theirs are listed: five thousand would take longer than what
    is measured.
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
    cluster = beside_a_cluster(args.nodes, args.pods, args.losses, args.limit) if args.nodes else {}
    goals = {
        "ledger_of_a_million_events_under_5_s": ledger["ledger_s"] < LEDGER_GOAL_S,
        "states_sum_to_wall_time_within_1_ms": ledger["unsummed_ms"] < SUM_GOAL_MS,
        "report_under_1.5_mb": ledger["report_mb"] < REPORT_GOAL_MB,
    }
    if cluster:
        goals["detection_lag_p99_under_5_s"] = cluster["lag_p99_s"] < LAG_GOAL_S
    ended({"bench": "monitoring", "figures": ledger | cluster}, goals)


if __name__ == "__main__":
    main()
