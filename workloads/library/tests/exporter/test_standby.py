"""Tests two exporters of one cluster: one serves, and a failover counts nothing twice."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.controllers.cluster import Cluster
from holdfast.controllers.lease import Lease
from holdfast.cost.churn.cloud_series import CloudReader
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter
from workloads.library.tests.controllers.test_cluster import node
from workloads.library.tests.cost.churn.metric_server import MetricServer
from workloads.library.tests.cost.churn.test_cloud import HOUR, MIDNIGHT
from workloads.library.tests.exporter.fake_source import FakeSource
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.sample import line


@dataclass
class Leases:
    """Fakes the one Lease of an API server; tests/cluster has the real one."""

    lease: Any = None
    away: bool = False

    def find(self, path: str) -> Any:
        if self.away:
            raise ApiError(503, "away")
        return self.lease

    def items(self, path: str, **query: str) -> list[Any]:
        return []

    def replace(self, path: str, body: Any) -> None:
        self.lease = body

    create = replace


def serves(exporter: Exporter) -> int:
    return sum(len(family.samples) for family in exporter.newest.collect())


class Pair:
    def __init__(self) -> None:
        self.clock = Clock(MIDNIGHT + 10)
        self.leases = Leases()
        self.server = MetricServer(self.clock)
        self.client = self.server.start()
        self.both = [self._replica("a"), self._replica("b")]

    def _replica(self, name: str) -> Exporter:
        api: Any = self.leases
        writer = CloudWriter(
            self.client, "acme-ai", "us-central1", "holdfast-example", clock=self.clock
        )
        lease = Lease(api, "monitoring", me=name, clock=self.clock)
        return Exporter(
            cluster=Cluster(clock=self.clock),
            lease=lease,
            writer=writer,
            clock=self.clock,
        )

    def lose(self, name: str) -> None:
        preempted = node(name, ready="False", message="node is shutting down")
        for replica in self.both:
            replica.cluster.node("ADDED", node(name))
            replica.cluster.node("MODIFIED", preempted)
            replica.cluster.node("DELETED", preempted)

    def run(self, passes: int, *replicas: Exporter, every_s: float = 15.0) -> None:
        for _ in range(passes):
            for replica in replicas or self.both:
                replica.one_pass()
            self.clock.now += every_s

    def count_preemptions(self) -> float:
        return self.count("preemptions_total")

    def count(self, metric: str) -> float:
        reader = CloudReader(client=self.client, project="acme-ai")
        increases = reader.increases(metric, int(MIDNIGHT), int(MIDNIGHT + HOUR))
        return sum(increase.value for increase in increases)


@pytest.fixture
def pair() -> Generator[Pair]:
    pair = Pair()
    yield pair
    pair.server.stop()


def test_a_failover_counts_nothing_twice(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    second = pair.both[1]
    for name in ("a", "b", "c"):
        pair.lose(name)
        pair.run(2)
    pair.run(1, second)  # looks once more after the last renewal of the first
    pair.lose("d")  # while none holds the lease
    pair.run(4, second)
    assert serves(second) > 0
    pair.lose("e")
    pair.run(2, second)
    assert pair.count_preemptions() == 5
    assert second.writer and second.writer.refused == 0
    written = capsys.readouterr().out
    assert written.count('"node_up"') == written.count('"node_down"') == 5


def test_a_holder_without_api_server_serves_until_its_term_ends(pair: Pair) -> None:
    first = pair.both[0]
    pair.lose("a")
    pair.run(1, first)
    for away, passes, still in ((True, 1, True), (True, 2, False), (False, 1, True)):
        pair.leases.away = away
        pair.run(passes, first)
        assert (serves(first) > 0) is still
    assert pair.count_preemptions() == 1


def test_regaining_the_lease_starts_the_counters_again(pair: Pair) -> None:
    first, second = pair.both
    pair.lose("a")
    pair.run(2)
    pair.run(4, second)  # the first is cut off, and the second takes over
    pair.lose("b")
    pair.run(2)
    pair.leases.lease["spec"] |= {"holderIdentity": ""}
    pair.lose("c")
    pair.run(2)
    assert serves(first) > 0 == serves(second)
    assert pair.count_preemptions() == 3
    for replica in pair.both:
        assert replica.writer
        assert replica.writer.refused == 0


def test_a_failover_counts_no_event_line_twice(pair: Pair) -> None:
    sources = [FakeSource(), FakeSource()]
    for replica, source in zip(pair.both, sources, strict=True):
        replica.jobs = Jobs(source, pair.clock.now)

    def write_lines() -> None:
        t = pair.clock.now
        rows = [
            line(
                t,
                "dead_lettered",
                "job",
                "batch",
                item="a",
                reason="poison",
            ),
            line(
                t,
                "item_failed",
                "job",
                "batch",
                item="a",
                error_class="e",
                failures=1,
            ),
            line(
                t,
                "restore",
                "run",
                step=1,
                seconds=1,
                skipped=["broken"],
            ),
            line(
                t,
                "moved",
                "run",
                source="spot",
                capacity="on-demand",
                reason="late",
            ),
            line(t, "of another version"),
        ]
        for source in sources:
            source.add(*rows)

    metrics = (
        "dead_letters_total",
        "batch_failures_total",
        "restores_skipped_total",
        "placement_moves_total",
        "event_lines_refused_total",
    )
    second = pair.both[1]
    for _ in range(3):
        write_lines()
        pair.run(2)
    assert [pair.count(metric) for metric in metrics] == [3] * 5
    pair.run(4, second)  # the first is gone
    assert serves(second) > 0
    assert [pair.count(metric) for metric in metrics] == [3] * 5
    write_lines()
    pair.run(2, second)
    assert [pair.count(metric) for metric in metrics] == [4] * 5
