"""Tests churn from Cloud Monitoring: the real client, the exporter's series, and its failures."""

import io
import json
from collections.abc import Generator
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from holdfast.controllers.sample import sample
from holdfast.cost.churn import cli, cloud_series
from holdfast.cost.churn.cloud_series import SETTLE_S, CloudReader, Measured
from holdfast.cost.churn.estimate import Exposure, Group
from holdfast.exporter.cloud import CloudWriter
from holdfast.support import progress
from holdfast.support.errors import InputError, Unjudged
from workloads.library.tests.cost.churn.metric_server import MetricServer
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.processes import until

HOUR = 3_600.0
MIDNIGHT = 20_000 * 86_400.0
L4 = Group(pool="spot-l4", machine_type="g2-standard-8", zone="us-central1-a")


class Cloud:
    """Has an exporter that writes, and a reader of what it wrote."""

    def __init__(self) -> None:
        self.clock = Clock(MIDNIGHT)
        self.server = MetricServer(self.clock)
        self.client = self.server.start()
        self.reader = CloudReader(client=self.client, project="acme-ai", patience_s=30.0)
        self.writers: dict[str, CloudWriter] = {}

    def write(
        self,
        hours: float,
        node_hours: float,
        losses: int,
        group: Group = L4,
        age_h: str = "0",
        cluster: str = "ours",
    ) -> None:
        """Writes both counters at a moment, in hours from midnight."""
        self.clock.now = MIDNIGHT + hours * HOUR
        labels = {
            "pool": group.pool,
            "machine_type": group.machine_type,
            "zone": group.zone,
            "age_h": age_h,
        }
        values = {"spot_node_seconds_total": node_hours * HOUR, "spot_node_losses_total": losses}
        both = []
        for name, value in values.items():
            both.append(sample(name, value, **labels))
        writer = CloudWriter(self.client, "acme-ai", "us-central1", cluster, clock=self.clock)
        assert self.writers.setdefault(cluster, writer).write(both) == 2

    def measure(self, hours: float, since_s: float = 7 * 86_400.0) -> Measured:
        return self.reader.measure(MIDNIGHT + hours * HOUR + SETTLE_S, since_s)


@pytest.fixture
def cloud() -> Generator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.server.stop()


def test_losses_and_node_hours_survive_counter_restarts(cloud: Cloud) -> None:
    for hours, node_hours, losses in ((1, 5, 1), (2, 10, 2), (3, 1, 0), (40, 7, 1)):
        cloud.write(hours, node_hours, losses)
    [(group, exposure)] = cloud.measure(41).groups.items()
    assert group == L4
    assert exposure.hours == pytest.approx(17)
    assert exposure.events == pytest.approx(3)


def test_groups_and_ages_stay_apart_over_all_pages(cloud: Cloud) -> None:
    groups = []
    for n in range(7):
        groups.append(
            Group(
                pool=f"pool-{n}",
                machine_type="g2-standard-8",
                zone="a",
            )
        )
    for n, group in enumerate(groups):
        cloud.write(1 + n / 60, 0, 0, group)
        cloud.write(2 + n / 60, 10 * (n + 1), n, group, "0")
    cloud.write(2.5, 3, 1, groups[0], "12")
    cloud.server.page_series = 3
    churn = cloud.measure(4)
    assert cloud.server.pages == [3, 3, 2] * 2
    hours = (13, 20, 30, 40, 50, 60, 70)
    events = (1, 1, 2, 3, 4, 5, 6)
    for group, group_hours, group_events in zip(groups, hours, events, strict=True):
        assert round(churn.groups[group].hours) == group_hours
        assert round(churn.groups[group].events) == group_events
    (low, _, oldest) = churn.ages[-1]
    assert low == 12.0
    assert round(oldest.hours) == 3
    assert round(oldest.events) == 1


def test_an_empty_period_or_a_missing_series_is_unjudged(cloud: Cloud) -> None:
    with pytest.raises(
        Unjudged, match="spot_node_seconds_total: the exporter has never written it"
    ):
        cloud.measure(5)
    cloud.write(1, 5, 1)
    with pytest.raises(
        Unjudged, match="no Spot node was watched in project acme-ai from 2024-10-13 00:00 to"
    ):
        cloud.measure(10 * 24, since_s=24 * HOUR)
    for hours in range(2, 60):
        cloud.write(hours, 4 + hours, 1)
    hours_measured = cloud.measure(55, since_s=31 * HOUR).groups[L4].hours
    assert hours_measured == pytest.approx(31), "the newest may not have arrived"


FAULTS = {
    grpc.StatusCode.PERMISSION_DENIED: "needs roles/monitoring.viewer",
    grpc.StatusCode.UNAUTHENTICATED: "needs roles/monitoring.viewer",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the read quota is used up",
    grpc.StatusCode.UNAVAILABLE: "did not answer for spot_node_seconds_total",
}


def test_transient_errors_are_retried_and_others_unjudged(cloud: Cloud) -> None:
    cloud.write(1, 5, 1)
    cloud.server.faults = [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE]
    assert cloud.measure(5).groups[L4] == Exposure(events=1, hours=5)
    cloud.reader = replace(cloud.reader, patience_s=0.3)
    for fault, shown in FAULTS.items():
        cloud.server.faults = [fault] * 50
        with pytest.raises(Unjudged, match=shown):
            cloud.measure(5)


def test_incomplete_data_is_unjudged(cloud: Cloud) -> None:
    for n in range(4):
        cloud.write(1 + n / 60, 5, 1, Group(pool=f"pool-{n}", machine_type="m", zone="a"))
    cloud.server.incomplete = "shard away"
    with pytest.raises(Unjudged, match="could not read all of spot_node_seconds_total: shard away"):
        cloud.measure(5)
    cloud.server.incomplete = ""
    cloud.server.page_series = 2
    cloud.server.fault_on_page = grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(Unjudged, match=r"roles/monitoring\.viewer"):
        cloud.measure(5)
    cloud.server.fault_on_page = None
    cloud.write(2, 5, 1, age_h="0.5")
    with pytest.raises(Unjudged, match="age band of another version"):
        cloud.measure(5)


@pytest.mark.parametrize(
    ("events", "project", "since", "cluster", "shown"),
    [
        (None, "", "", "", "one source"),
        (Path(), "acme-ai", "", "", "one source"),
        (Path(), "", "", "ours", "know no cluster"),
        (None, "Acme AI", "", "", "no project id"),
        (None, "acme-ai", "a week", "", "--since: got"),
        (None, "acme-ai", "", 'x" OR "', "no cluster name"),
    ],
)
def test_invalid_options_are_bad_input(
    events: Path | None,
    project: str,
    since: str,
    cluster: str,
    shown: str,
) -> None:
    with pytest.raises(InputError, match=shown):
        cli.show_churn(
            events,
            project,
            since,
            as_json=False,
            cluster=cluster,
        )


def test_clusters_are_added_up_with_a_note(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for hours, node_hours, losses in ((1, 0, 0), (2, 40, 4)):
        cloud.write(hours, node_hours, losses)
        cloud.write(hours, 2 * node_hours, 0, cluster="other")

    def make_reader(project: str, cluster: str) -> CloudReader:
        return replace(cloud.reader, project=project, cluster=cluster)

    monkeypatch.setattr("holdfast.cost.churn.cloud_series.cloud_reader", make_reader)
    monkeypatch.setattr(cli, "time", SimpleNamespace(time=lambda: MIDNIGHT + 5 * HOUR))

    def show(cluster: str) -> tuple[float, list[str], str]:
        cli.show_churn(
            None,
            "acme-ai",
            "7d",
            as_json=True,
            cluster=cluster,
        )
        printed = capsys.readouterr()
        body = json.loads(printed.out)
        [row] = body["groups"]
        assert row["pool"] == "spot-l4"
        assert row["low"] <= row["per_hour"] < row["high"]
        return row["per_hour"], body["clusters"], printed.err

    both = ["us-central1/other", "us-central1/ours"]
    summed = f"added up: {', '.join(both)}; --cluster NAME shows one of them\n"
    assert show("") == (pytest.approx(4 / 120), both, summed)
    assert show("ours") == (pytest.approx(0.1), both[1:], "")
    assert show("other") == (0, both[:1], "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_sees_that_the_cloud_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SILENT_S", 0.0)

    def measure(*_: float) -> Measured:
        until(lambda: "read Cloud Monitoring (" in terminal.getvalue(), terminal.getvalue)
        raise Unjudged("no series")

    reader = SimpleNamespace(measure=measure)
    monkeypatch.setattr(cloud_series, "cloud_reader", lambda *_: reader)
    with redirect_stderr(terminal), pytest.raises(Unjudged):
        cli.show_churn(None, "acme-ai", "", as_json=False)
