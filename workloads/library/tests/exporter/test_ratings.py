"""Tests that the exporter keeps Google's ratings with the machines that came."""

import json
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.controllers.cluster import Cluster
from holdfast.exporter.main import Exporter
from holdfast.exporter.ratings import Ratings, ask_as_account, find_machines
from holdfast.platform import Platform
from holdfast.support.errors import Unjudged
from tests import platforms
from workloads.library.tests.clients.capacity_advisor import Advisor, advising

EXAMPLE = platforms.load("example")
POOL = EXAMPLE.pool("spot-l4-g2-standard-8")
START_S = 1_795_219_200.0
SCORES = {("g2-standard-8", "SPOT"): (0.9, "600s")}
RETRY_S = 1_800.0


class Watched:
    """An exporter whose clock and cluster a test moves."""

    def __init__(self, platform: Platform = EXAMPLE) -> None:
        self.now_s = START_S
        self.cluster = Cluster(clock=lambda: self.now_s)
        self.ratings = Ratings(ask=ask_as_account, find_platform=lambda: platform, every_s=RETRY_S)
        self.exporter = Exporter(
            cluster=self.cluster, ratings=self.ratings, clock=lambda: self.now_s
        )

    def pass_at(self, seconds: float) -> None:
        """Runs a pass at a time after the start, and waits for Google's answers to it."""
        self.now_s = START_S + seconds
        self.exporter.one_pass()
        wait([trial.answer for trial in self.ratings.trials.values()], timeout=60)

    def add_waiting_pod(self, name: str) -> None:
        self.cluster.pod("ADDED", make_pod(name))

    def remove_pod(self, name: str) -> None:
        self.cluster.pod("DELETED", make_pod(name))

    def add_node(self, name: str, seconds: float) -> None:
        """Adds a node that was created at a time after the start."""
        labels = POOL.node_labels() | {"node.kubernetes.io/instance-type": POOL.machine_type}
        minutes = int(seconds) // 60
        born = f"2026-11-21T{minutes // 60:02}:{minutes % 60:02}:00Z"
        metadata = {
            "name": name,
            "labels": labels,
            "creationTimestamp": born,
        }
        body = {
            "metadata": metadata,
            "status": {},
        }
        self.cluster.node("ADDED", body)


def make_pod(name: str) -> Any:
    waiting = {
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": "2026-11-21T00:00:00Z",
    }
    container = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    metadata = {
        "uid": name,
        "name": name,
        "namespace": "training",
    }
    spec = {
        "nodeSelector": POOL.selector(),
        "containers": [container],
    }
    status = {
        "phase": "Pending",
        "conditions": [waiting],
    }
    return {
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def advisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Advisor]:
    monkeypatch.setenv("HOLDFAST_GOOGLE_TOKEN", "not-a-secret")
    advisor = Advisor(dict(SCORES))
    with advising(advisor) as address:
        monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", address)
        yield advisor


def read_ratings(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    ratings = []
    for line in capsys.readouterr().out.splitlines():
        if '"rated"' in line:
            ratings.append(json.loads(line))
    return ratings


def test_machines_that_came_are_kept_with_their_rating(
    advisor: Advisor, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watched()
    watched.add_node("old", 0)
    for name in ("a", "b"):
        watched.add_waiting_pod(name)
    watched.pass_at(60)
    watched.add_node("first", 120)
    watched.pass_at(135)
    assert read_ratings(capsys) == []  # one of two came
    watched.add_node("second", 240)
    watched.pass_at(255)
    [line] = read_ratings(capsys)
    assert line["obtainability"] == 0.9
    assert line["machine_type"] == "g2-standard-8"
    assert line["capacity"] == "spot"
    assert line["nodes"] == 2
    assert line["of"] == 2
    assert line["seconds"] == 180.0
    [(_, request)] = advisor.requests
    assert request["size"] == 2


def test_machines_that_did_not_come_in_time_count_too(
    advisor: Advisor, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watched()
    watched.add_waiting_pod("a")
    watched.pass_at(60)
    watched.pass_at(600)
    assert read_ratings(capsys) == []
    watched.pass_at(675)
    [line] = read_ratings(capsys)
    assert line["nodes"] == 0
    assert line["of"] == 1


def test_the_report_shows_how_often_a_rating_came_true(
    advisor: Advisor, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The exporter's own lines make the page: one of two ratings of 0.9 came true."""
    watched = Watched()
    watched.add_waiting_pod("a")
    watched.pass_at(0)
    watched.add_node("first", 120)
    watched.pass_at(135)
    watched.pass_at(RETRY_S)
    watched.pass_at(RETRY_S + 615)
    (tmp_path / "exporter.jsonl").write_text(capsys.readouterr().out)
    page = tmp_path / "report.html"
    options = ["report", "--events", str(tmp_path), "--out", str(page), "--json"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    [rating] = json.loads(result.stdout)["capacity"]["ratings"]
    assert rating["band"] == "0.9 to 1"
    assert rating["n"] == 2
    assert rating["came"] == 1
    text = page.read_text()
    assert "Machines that came within 10 minutes of Google" in text
    assert "0.9 to 1" in text
    assert "50.0%" in text


def test_pods_that_need_no_machine_any_more_prove_nothing(
    advisor: Advisor, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watched()
    watched.add_waiting_pod("a")
    watched.pass_at(60)
    watched.remove_pod("a")
    watched.pass_at(75)
    watched.pass_at(900)
    assert read_ratings(capsys) == []
    assert len(advisor.requests) == 1


def test_the_same_machines_are_asked_for_once_in_the_interval(advisor: Advisor) -> None:
    watched = Watched()
    watched.add_waiting_pod("a")
    for seconds in range(0, 3_600, 60):
        watched.pass_at(seconds)
    assert len(advisor.requests) == 2


def test_nothing_is_asked_while_no_pod_waits_or_the_pool_is_full(advisor: Advisor) -> None:
    watched = Watched()
    watched.pass_at(0)
    limit = 0
    for pool in EXAMPLE.pools:
        if pool.pool_class == POOL.pool_class:
            limit += pool.max_nodes
    assert limit
    for number in range(limit):
        watched.add_node(f"node-{number}", 0)
    watched.add_waiting_pod("a")
    watched.pass_at(60)
    assert advisor.requests == []


def test_a_refusal_is_one_line_and_the_exporter_goes_on(
    advisor: Advisor, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    advisor.status = 403
    watched = Watched()
    watched.add_waiting_pod("a")
    for seconds in range(0, 7_200, 60):
        watched.pass_at(seconds)
    assert len(advisor.requests) == 4
    (record,) = caplog.records
    assert record.getMessage().startswith("machines are not rated: Google answered 403")
    assert read_ratings(capsys) == []
    assert any(list(watched.exporter.newest.collect()))


def test_off_asks_nothing(
    advisor: Advisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", "off")
    watched = Watched()
    watched.add_waiting_pod("a")
    watched.pass_at(0)
    watched.pass_at(60)
    assert advisor.requests == []
    [record] = caplog.records
    assert "not asked: HOLDFAST_CAPACITY_ADVICE=off" in record.getMessage()


def test_a_cluster_without_a_document_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def find_no_platform() -> Platform:
        raise Unjudged("no document")

    watched = Watched()
    watched.ratings.find_platform = find_no_platform
    watched.add_waiting_pod("a")
    watched.pass_at(0)
    watched.pass_at(3_600)
    [record] = caplog.records
    assert record.getMessage() == "machines are not rated: no document"


def test_an_exporter_that_does_not_lead_drops_its_trials(
    advisor: Advisor, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watched()
    watched.add_waiting_pod("a")
    watched.pass_at(0)
    watched.ratings.forget()
    watched.pass_at(900)
    assert read_ratings(capsys) == []


def test_flex_start_pods_get_the_smallest_provisioned_machine() -> None:
    cluster = Cluster()
    body = make_pod("a")
    body["spec"]["nodeSelector"] = {
        "cloud.google.com/gke-flex-start": "true",
        "cloud.google.com/gke-accelerator": "nvidia-l4",
    }
    body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 2
    cluster.pod("ADDED", body)
    platform = replace(EXAMPLE, auto_provisioning={"nvidia-l4": 9}, pools=())
    machines = find_machines(cluster.pods["a"], platform)
    assert machines is not None
    assert (machines.machine_types, machines.limit) == (("g2-standard-24",), 4)
    nowhere = replace(platform, auto_provisioning={})
    assert find_machines(cluster.pods["a"], nowhere) is None
