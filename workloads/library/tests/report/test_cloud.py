"""A report from Cloud Monitoring: what its series hold, and the rest named as missing."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.exit_codes import EXIT_DONE
from holdfast.exporter.sample import Sample, sample
from holdfast.place.churn.cloud_series import Point, checked_cluster
from holdfast.report.capacity import POD_KIND
from holdfast.report.cli import one_source, write_cloud_report
from holdfast.report.cloud import MISSING, by_hour, cloud_report, waits
from workloads.library.tests.place.churn.test_cloud import HOUR, MIDNIGHT, Cloud
from workloads.library.tests.place.churn.test_cloud import cloud as cloud

CLOCK = lambda: MIDNIGHT + 5 * HOUR + 600  # noqa: E731


def written_report(cloud: Cloud, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, cluster: str = "") -> Any:
    monkeypatch.setattr("holdfast.place.churn.cloud_series.cloud_reader", cloud.reader_of)
    assert write_cloud_report("acme-ai", out, since="7d", as_json=True, cluster=cluster, clock=CLOCK) == EXIT_DONE
    return json.loads(capsys.readouterr().out)


def wait(seconds: str, count: int) -> Sample:
    return sample("pod_waits_total", count, capacity="spot", accelerator="nvidia-l4", wait_s=seconds)


def test_the_page_shows_churn_waits_and_useful_time_and_names_what_is_missing(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for hours, node_hours, losses in ((1, 0, 0), (2, 20, 0), (3, 40, 2), (4, 60, 3)):
        pending = sample("pending_seconds", 5400 if hours == 3 else 0, capacity="spot", accelerator="nvidia-l4")
        ended = [wait("0", hours * 2), wait("60", hours), wait("3600", 1)]
        ended += [sample("queue_waits_total", hours * 3, queue="spot", flavor="spot-l4", accelerator="nvidia-l4", wait_s="600")]  # fmt: skip
        held = sample("queue_wait_seconds", 900 * hours, queue="spot", flavor="none", accelerator="nvidia-l4", reason="quota")  # fmt: skip
        goodput = sample("goodput_ratio", 0.5 + hours / 10, job="run-7")
        cloud.write(hours, node_hours, losses, more=[*ended, pending, held, goodput])
    out = tmp_path / "report.html"
    found = written_report(cloud, out, monkeypatch, capsys)
    assert re.fullmatch(
        r"3 preemptions in 60 Spot node-hours, 0\.0500 a node-hour \(90 %: 0\.0\d+ to 0\.1\d+\); "
        "useful time of 1 job 90%.",
        found["answer"],
    )
    [cluster] = found["capacity"]
    assert cluster["cluster"] == "us-central1/holdfast-example"
    assert [(row["hour"], row["count"]) for row in cluster["preemptions"]] == [
        ("2024-10-04T02:00Z", 2),
        ("2024-10-04T03:00Z", 1),
    ]
    assert cluster["waits"] == [
        {"accelerator": "nvidia-l4", "capacity": "spot", "n": 13, "rounded_up": True}
        | {"p50_seconds": 10, "p95_seconds": 7200, "longest_seconds": 5400}
    ]
    spot = {"queue": "spot", "accelerator": "nvidia-l4", "rounded_up": True}
    assert cluster["queue_waits"] == [
        spot | {"flavor": "none", "n": 0, "p50_seconds": None, "p95_seconds": None, "longest_seconds": 3600},
        spot | {"flavor": "spot-l4", "n": 12, "p50_seconds": 1200, "p95_seconds": 1200, "longest_seconds": None},
    ]
    assert cluster["useful_time"] == [{"job": "run-7", "hours": 4, "newest": 0.9, "lowest": 0.6}]
    assert found["not_in_source"] == list(MISSING)
    page = out.read_text()
    assert "Not in this source:" in page
    assert "2024-09-27 00:00 to 2024-10-04 05:00 UTC, Cloud Monitoring of acme-ai" in page
    assert "up to 7,200" in page
    assert "Waiting in a queue" in page
    assert "no events" not in page
    assert "event line could be read" not in page


def test_each_cluster_of_a_project_is_kept_apart(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = cloud.writer_of("holdfast-other")
    for hours, node_hours, losses in ((1, 0, 0), (4, 60, 3)):
        cloud.write(hours, node_hours, losses)
        cloud.write(hours, 100 * losses, 0, writer=other)
    out = tmp_path / "report.html"
    found = written_report(cloud, out, monkeypatch, capsys)
    assert [
        (row["cluster"], row["churn"][0]["node_hours"], row["churn"][0]["events"]) for row in found["capacity"]
    ] == [
        ("us-central1/holdfast-example", pytest.approx(60), pytest.approx(3)),
        ("us-central1/holdfast-other", pytest.approx(300), 0),
    ]
    assert found["answer"].startswith("2 clusters: us-central1/holdfast-example: 3 preemptions in 60 Spot node-hours")
    assert "us-central1/holdfast-other: 0 preemptions in 300 Spot node-hours" in found["answer"]
    page = out.read_text()
    assert "Capacity of us-central1/holdfast-other" in page
    assert len(re.findall(r' id="([^"]+)"', page)) == len(set(re.findall(r' id="([^"]+)"', page)))
    [alone] = written_report(cloud, out, monkeypatch, capsys, "holdfast-other")["capacity"]
    assert alone["cluster"] == "us-central1/holdfast-other"


def test_a_metric_that_was_never_written_is_named_and_the_rest_is_shown(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.write(1, 5, 1)
    missing = written_report(cloud, tmp_path / "report.html", monkeypatch, capsys)["not_in_source"]
    assert [text.partition(":")[0] for text in missing if "never written" in text] == [
        "how long pods waited (p50, p95)",
        "how long jobs waited in queues (p50, p95)",
        "the longest wait",
        "the longest wait in a queue",
        "useful time of jobs",
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "needs roles/monitoring.viewer"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the read quota is used up"),
    ],
)
def test_no_page_is_written_where_the_cloud_does_not_answer(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: grpc.StatusCode, expected: str
) -> None:
    cloud.write(1, 5, 1)
    cloud.server.faults = [fault] * 50
    cloud.reader = replace(cloud.reader, patience_s=0.3)
    monkeypatch.setattr("holdfast.place.churn.cloud_series.cloud_reader", cloud.reader_of)
    with pytest.raises(Unjudged, match=expected):
        write_cloud_report("acme-ai", tmp_path / "report.html", since="7d", as_json=False, clock=CLOCK)
    assert not (tmp_path / "report.html").exists()


def test_an_empty_window_is_no_quiet_one(cloud: Cloud) -> None:
    cloud.write(1, 5, 1)
    with pytest.raises(Unjudged, match="wrote nothing of cluster nowhere of project acme-ai from 2024-09-27 00:00 to"):
        cloud_report(cloud.reader_of("acme-ai", "nowhere"), CLOCK(), 7 * 86_400)


def test_waits_beyond_the_last_band_have_no_upper_end() -> None:
    [found] = waits([Point({"accelerator": "a", "capacity": "spot", "wait_s": "604800"}, 0, 3)], [], POD_KIND)
    assert found.p50_s == math.inf
    assert found.as_json()["p50_seconds"] is None


def test_a_wait_that_never_ended_is_shown_without_a_percentile() -> None:
    [found] = waits([], [Point({"accelerator": "a", "capacity": "spot"}, 0, 900)], POD_KIND)
    assert (found.n, found.p50_s, found.longest_s) == (0, None, 900)


def test_bands_of_another_version_are_not_mixed_in() -> None:
    with pytest.raises(Unjudged, match="band of another version"):
        list(waits([Point({"accelerator": "a", "capacity": "spot", "wait_s": "45"}, 0, 1)], [], POD_KIND))


def test_fractions_of_a_silent_hour_add_up_to_whole_preemptions() -> None:
    points = [Point({"pool": "a"}, hour * 3600, 0.5) for hour in range(6)]
    assert sum(count for _, _, count in by_hour(points)) == 3


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((None, ""), "one source"),
        ((Path(), "acme-ai"), "one source"),
        ((None, "acme-ai", "", None, "g2-standard-8", ""), "has no prices"),
        ((Path(), "", "holdfast-example"), "no cluster"),
    ],
)
def test_a_report_has_one_source_and_only_its_options(given: tuple[Any, ...], error: str) -> None:
    with pytest.raises(InputError, match=error):
        one_source(*given)
    assert one_source(None, "acme-ai", "", None, "", "") is None


def test_a_cluster_name_cannot_change_the_filter(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cluster name"):
        checked_cluster('a" OR metric.type = "b')
