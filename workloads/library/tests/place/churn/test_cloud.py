"""Churn from Cloud Monitoring: the real client, what the exporter wrote, and every way in which it can fail."""

import json
import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import grpc
import pytest

from holdfast.contract.errors import InputError, Unjudged
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.sample import Sample, sample
from holdfast.place.churn import cli
from holdfast.place.churn import days as daily
from holdfast.place.churn.cloud_series import CloudReader
from holdfast.place.churn.days import read_days
from holdfast.place.churn.estimate import Exposure, Group
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.place.churn.metric_server import MetricServer

DAY = 86_400.0
HOUR = 3_600.0
MIDNIGHT = 20_000 * DAY
L4 = Group(pool="spot-l4", machine_type="g2-standard-8", zone="us-central1-a")
WEEK = 7 * DAY


class Cloud:
    """An exporter that writes, and a reader of what it wrote."""

    def __init__(self) -> None:
        self.clock = Clock(MIDNIGHT)
        self.server = MetricServer(self.clock)
        client = self.server.start()
        self.writer = CloudWriter(client, "acme-ai", "us-central1", "holdfast-example", clock=self.clock)
        self.reader = CloudReader(client=client, project="acme-ai", patience_s=30.0)

    def reader_of(self, project: str, cluster: str = "") -> CloudReader:
        return replace(self.reader, project=project, cluster=cluster)

    def writer_of(self, cluster: str) -> CloudWriter:
        return CloudWriter(self.writer.client, "acme-ai", "us-central1", cluster, clock=self.clock)

    def write(
        self,
        hours: float,
        node_hours: float,
        losses: int,
        group: Group = L4,
        age_h: str = "0",
        writer: CloudWriter | None = None,
        more: Sequence[Sample] = (),
    ) -> None:
        """Both counters at a moment, and `more`; hours from the first midnight. A series left out has ended."""
        self.clock.now = MIDNIGHT + hours * HOUR
        labels = {"pool": group.pool, "machine_type": group.machine_type, "zone": group.zone, "age_h": age_h}
        both = [
            sample("spot_node_seconds_total", node_hours * HOUR, **labels),
            sample("spot_node_losses_total", losses, **labels),
        ]
        assert (writer or self.writer).write([*both, *more]) == 2 + len(more)

    def days(self, hours: float, since_s: float = WEEK) -> dict[date, daily.Day]:
        found, _ = read_days(self.reader, MIDNIGHT + hours * HOUR + 600, since_s)
        return {day.day: day for day in found}


@pytest.fixture
def cloud() -> Generator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.server.stop()


def total(days: dict[date, daily.Day]) -> dict[Group, Exposure]:
    return daily.by_group(days.values())


def test_losses_over_node_hours_are_what_the_exporter_counted(cloud: Cloud) -> None:
    for hours, node_hours, losses in ((1, 0, 0), (2, 10, 0), (3, 20, 1), (30, 290, 2)):
        cloud.write(hours, node_hours, losses)
    days = cloud.days(30)
    assert [(day.day.isoformat(), day.hours) for day in days.values()] == [("2024-10-04", 24), ("2024-10-05", 6)]
    [(group, exposure)] = total(days).items()
    assert group == L4
    assert (exposure.hours, exposure.events) == (pytest.approx(290), pytest.approx(2))


def test_a_counter_that_began_anew_loses_nothing_and_counts_nothing_twice(cloud: Cloud) -> None:
    for hours, node_hours, losses in ((1, 5, 1), (2, 10, 2), (3, 1, 0), (4, 7, 1)):
        cloud.write(hours, node_hours, losses)
    exposure = total(cloud.days(5))[L4]
    assert (exposure.hours, exposure.events) == (pytest.approx(17), pytest.approx(3))


def test_each_group_and_each_age_is_kept_apart_over_all_pages(cloud: Cloud) -> None:
    groups = [Group(pool=f"pool-{n}", machine_type="g2-standard-8", zone="a") for n in range(7)]
    for n, group in enumerate(groups):
        cloud.write(1 + n / 60, 0, 0, group)
        cloud.write(2 + n / 60, 10 * (n + 1), n, group, "0")
    cloud.write(2.5, 3, 1, groups[0], "12")
    cloud.server.listing.page_series = 3
    days = cloud.days(4)
    assert cloud.server.listing.pages == [3, 3, 2] * 2
    found = total(days)
    assert [round(found[group].hours) for group in groups] == [13, 20, 30, 40, 50, 60, 70]
    assert [round(found[group].events) for group in groups] == [1, 1, 2, 3, 4, 5, 6]
    oldest = daily.by_age(days.values())[-1]
    assert oldest == (12.0, math.inf, Exposure(events=pytest.approx(1), hours=pytest.approx(3)))  # pyright: ignore[reportArgumentType]


def test_the_window_begins_at_a_midnight_and_ends_at_a_full_hour(cloud: Cloud) -> None:
    for hours in range(1, 60):
        cloud.write(hours, hours, 0)
    days = cloud.days(55.5, since_s=DAY)
    assert [(day.day.isoformat(), day.hours) for day in days.values()] == [("2024-10-05", 24), ("2024-10-06", 7)]
    assert total(days)[L4].hours == pytest.approx(31)


def test_an_empty_window_is_no_quiet_one(cloud: Cloud) -> None:
    cloud.write(1, 5, 1)
    with pytest.raises(Unjudged, match="no Spot node was watched in project acme-ai from 2024-10-13 00:00 to"):
        cloud.days(10 * 24, since_s=DAY)


def test_a_series_that_nobody_ever_wrote_is_reported(cloud: Cloud) -> None:
    with pytest.raises(Unjudged, match="spot_node_seconds_total: the exporter has never written it"):
        cloud.days(5)


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "needs roles/monitoring.viewer"),
        (grpc.StatusCode.UNAUTHENTICATED, "needs roles/monitoring.viewer"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the read quota is used up"),
        (grpc.StatusCode.UNAVAILABLE, "did not answer for spot_node_seconds_total"),
    ],
)
def test_a_lasting_fault_is_no_number(cloud: Cloud, fault: grpc.StatusCode, shown: str) -> None:
    cloud.write(1, 5, 1)
    cloud.server.faults = [fault] * 50
    cloud.reader = replace(cloud.reader, patience_s=0.3)
    with pytest.raises(Unjudged, match=shown):
        cloud.days(5)


def test_a_passing_fault_is_tried_again(cloud: Cloud) -> None:
    cloud.write(1, 5, 1)
    cloud.server.faults = [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE]
    assert total(cloud.days(5))[L4] == Exposure(events=1, hours=5)


def test_a_page_that_fails_takes_the_whole_answer_with_it(cloud: Cloud) -> None:
    for n in range(4):
        cloud.write(1 + n / 60, 5, 1, Group(pool=f"pool-{n}", machine_type="m", zone="a"))
    cloud.server.listing.page_series = 2
    cloud.server.listing.fault_on_page = grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(Unjudged, match=r"roles/monitoring\.viewer"):
        cloud.days(5)


def test_an_answer_that_calls_itself_incomplete_is_no_number(cloud: Cloud) -> None:
    cloud.write(1, 5, 1)
    cloud.server.listing.incomplete = "shard away"
    with pytest.raises(Unjudged, match="could not read all of spot_node_seconds_total: shard away"):
        cloud.days(5)


def test_bands_of_another_version_are_not_mixed_in(cloud: Cloud) -> None:
    cloud.write(1, 5, 1, age_h="0.5")
    with pytest.raises(Unjudged, match="age band of another version"):
        cloud.days(5)


def test_the_command_reads_the_project_it_is_given(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.write(1, 0, 0)
    cloud.write(2, 40, 4)
    monkeypatch.setattr("holdfast.place.churn.cloud_series.cloud_reader", cloud.reader_of)
    cli.show_churn(None, "acme-ai", "7d", as_json=True, clock=lambda: MIDNIGHT + 5 * HOUR + 600)
    shown = json.loads(capsys.readouterr().out)
    assert shown["days"] == [{"day": "2024-10-04", "hours": 5}]
    assert shown["clusters"] == ["us-central1/holdfast-example"]
    [row] = shown["groups"]
    assert (row["pool"], row["per_hour"]) == ("spot-l4", pytest.approx(0.1))
    assert row["low"] < 0.1 < row["high"]


@pytest.mark.parametrize(
    ("events", "project", "since", "shown"),
    [
        (None, "", "", "one source"),
        (Path(), "acme-ai", "", "one source"),
        (None, "Acme AI", "", "no project id"),
        (None, "acme-ai", "a week", "no span of time"),
    ],
)
def test_a_question_that_makes_no_sense_is_bad_input(events: Path | None, project: str, since: str, shown: str) -> None:
    with pytest.raises(InputError, match=shown):
        cli.show_churn(events, project, since, as_json=False)


def test_clusters_are_never_added_up_in_silence(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = cloud.writer_of("holdfast-other")
    for hours, node_hours, losses in ((1, 0, 0), (2, 40, 4)):
        cloud.write(hours, node_hours, losses)
        cloud.write(hours, 2 * node_hours, 0, writer=other)
    monkeypatch.setattr("holdfast.place.churn.cloud_series.cloud_reader", cloud.reader_of)

    def shown(cluster: str) -> tuple[float, str]:
        cli.show_churn(
            None, "acme-ai", "7d", as_json=True, cluster=cluster, clock=lambda: MIDNIGHT + 5 * HOUR + 600,
        )  # fmt: skip
        printed = capsys.readouterr()
        [row] = json.loads(printed.out)["groups"]
        return row["per_hour"], printed.err

    assert shown("") == (
        pytest.approx(4 / 120),
        "added up: us-central1/holdfast-example, us-central1/holdfast-other; --cluster NAME shows one of them\n",
    )
    assert shown("holdfast-example") == (pytest.approx(0.1), "")
    assert shown("holdfast-other") == (0, "")
