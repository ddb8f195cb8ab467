"""Tests that event lines are read from Cloud Logging once, even if late, and whole for a job."""

import logging
from collections.abc import Generator, Sequence

import pytest
import requests

from holdfast.controllers import cloud_logs
from holdfast.controllers.cloud_logs import CloudLogs
from holdfast.exporter.jobs import Jobs
from holdfast.ledger.events import Event
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.job_identity import JobIdentity
from workloads.library.tests import sample
from workloads.library.tests.controllers.log_server import LogServer, serving
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.sample import EPOCH, Line, line


@pytest.fixture
def server() -> Generator[LogServer]:
    with serving(LogServer()) as running:
        yield running


@pytest.fixture
def source(server: LogServer) -> Generator[CloudLogs]:
    with requests.Session() as session:
        session.trust_env = False
        yield CloudLogs(
            session,
            "acme-ai",
            "holdfast-example",
            url=server.url,
            clock=Clock(EPOCH),
        )


def news(source: CloudLogs) -> int:
    source.turn()
    return sum(len(batch.lines) for batch in source.news())


def follow(source: CloudLogs) -> Jobs:
    jobs = Jobs(source)
    source.turn()
    jobs.read()
    return jobs


def list_jobs(jobs: Jobs) -> set[str]:
    return {name.job for name in jobs.runs}


def list_types(events: Sequence[Event]) -> list[str]:
    return [event.type for event in events]


def commits(*steps: int) -> list[Line]:
    return [line(EPOCH + step, "commit", step=step, seconds=1, bytes=1) for step in steps]


def test_lines_are_handed_on_once_even_if_late(server: LogServer, source: CloudLogs) -> None:
    server.add(commits(198, 199, 200))
    assert [news(source), news(source)] == [3, 0]
    server.add(commits(201 - int(cloud_logs.LATE_S)))
    assert [news(source), news(source)] == [1, 0]


def test_a_backlog_is_read_over_several_turns(
    server: LogServer, source: CloudLogs, caplog: pytest.LogCaptureFixture
) -> None:
    server.page = 2
    server.add(commits(*range(2 * cloud_logs.PAGES_A_TURN + 3)))
    assert [news(source), news(source), news(source)] == [2 * cloud_logs.PAGES_A_TURN, 3, 0]
    assert "more than can be read at once" in caplog.text


@pytest.mark.parametrize(
    ("status", "expected"),
    [(403, "needs roles/logging.viewAccessor"), (429, "answered 429"), (503, "answered 503")],
)
def test_a_failed_read_is_logged_and_repeated(
    server: LogServer,
    source: CloudLogs,
    caplog: pytest.LogCaptureFixture,
    status: int,
    expected: str,
) -> None:
    server.add([line(EPOCH, "start", rank=0)])
    server.faults = [status]
    with caplog.at_level(logging.WARNING):
        assert news(source) == 0
    assert expected in caplog.text
    assert news(source) == 1


def test_a_page_that_fails_is_read_again(server: LogServer, source: CloudLogs) -> None:
    server.page = 2
    server.add(commits(*range(5)))
    source.turn()
    server.add(commits(*range(5, 9)))
    server.faults = [503]
    assert [news(source), news(source)] == [5, 4]


def test_a_job_is_read_over_all_pages_or_not_at_all(
    server: LogServer, source: CloudLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.page = 7
    rows = sample.training("run-7")
    earlier = line(EPOCH - 60, "start", "run-7", rank=0)  # a job of the same name
    server.add([*sample.training("run-8"), earlier, *rows])
    reading = source.of_job("run-7", EPOCH)
    assert len(reading.events) == len(rows)
    for event in reading.events:
        assert event.job == "run-7"
    monkeypatch.setattr(cloud_logs, "PAGES_A_JOB", 2)
    with pytest.raises(Unjudged, match="more than 2,000 lines"):
        source.of_job("run-7", EPOCH)


@pytest.mark.parametrize(
    "name", ['run-7" OR jsonPayload.job="run-8', "run-7\\", 'run-7"', "", "a b"]
)
def test_an_invalid_job_name_reaches_no_filter(
    server: LogServer, source: CloudLogs, name: str
) -> None:
    server.add(sample.training("run-8"))
    assert source.of_job(name, EPOCH).events == []
    assert server.requests == []


def test_an_unreachable_server_is_unjudged() -> None:
    with requests.Session() as session:
        session.trust_env = False
        source = CloudLogs(
            session,
            "acme-ai",
            "holdfast-example",
            url="http://127.0.0.1:9/",
            clock=Clock(EPOCH),
        )
        with pytest.raises(Unjudged, match="did not answer: ConnectionError"):
            source.of_job("run-7", EPOCH)


def test_platform_lines_count_for_the_job_they_name(server: LogServer, source: CloudLogs) -> None:
    """No other lines of its namespace count, nor lines of a job's pod about another job."""
    wait = line(
        EPOCH,
        "scheduled",
        "run-7",
        seconds=60,
        node="n",
        pool="p",
        capacity="spot",
        accelerator="a",
    )
    evict = line(
        EPOCH + 1,
        "evict",
        "run-7",
        signal="SIGTERM",
        target="pod",
    )
    move = line(
        EPOCH + 2,
        "moved",
        "run-7",
        source="spot",
        capacity="on-demand",
        reason="r",
    )
    commit = line(
        EPOCH + 3,
        "commit",
        "run-7",
        step=9,
        seconds=1,
        bytes=1,
    )
    exporter = {"k8s-pod/app_kubernetes_io/name": "exporter"}
    server.add_lines(sample.encoded([wait, evict, move, commit]), exporter, "monitoring")
    server.writer = "run-8"
    server.add([evict | {"t": EPOCH + 4}, move | {"t": EPOCH + 5}])
    jobs = follow(source)
    (run,) = jobs.runs.values()
    assert list_types(run.events) == ["scheduled", "evict", "moved"]
    assert list_types(source.of_job("run-7", EPOCH).events) == [
        "scheduled",
        "evict",
        "moved",
    ]
    samples = {}
    for s in jobs.samples(EPOCH + 9, {}):
        samples[s.metric] = (s.value, dict(s.labels))
    assert samples["placement_moves_total"] == (
        1,
        {
            "namespace": "training",
            "job": "run-7",
            "capacity": "on-demand",
        },
    )


def test_equal_names_in_two_namespaces_are_two_runs(server: LogServer, source: CloudLogs) -> None:
    """A run that saves must not hide one that does not."""
    training_lines = [
        line(EPOCH, "start", "run-7", rank=0),
        line(EPOCH + 5, "commit", "run-7", step=1),
    ]
    batch_lines = [
        line(EPOCH, "start", "run-7", rank=0),
        line(EPOCH + 90, "commit", "run-7", step=9),
    ]
    evict = line(
        EPOCH + 95,
        "evict",
        "run-7",
        signal="SIGTERM",
        target="pod",
        namespace="batch",
    )
    server.add([*training_lines, line(EPOCH + 6, "start", "run-8")])
    server.add_lines(sample.encoded(batch_lines), {"k8s-pod/holdfast_dev/job": "run-7"}, "batch")
    server.add_lines(sample.encoded([evict]), {}, "monitoring")
    server.add_lines(
        sample.encoded([batch_lines[1] | {"job": "run-8"}]),
        {"k8s-pod/holdfast_dev/job": "run-7"},
        "batch",
    )
    jobs = follow(source)
    first = JobIdentity(namespace="training", job="run-7")
    second = JobIdentity(namespace="batch", job="run-7")
    assert list_types(jobs.runs[first].events) == ["start", "commit"]
    assert list_types(jobs.runs[second].events) == ["start", "commit", "evict"]
    ages = {}
    refusals = []
    for s in jobs.samples(EPOCH + 100, {first: EPOCH, second: EPOCH}):
        labels = dict(s.labels)
        if s.metric == "last_commit_age_seconds":
            ages[labels["namespace"]] = s.value
        if s.metric == "event_lines_refused_total":
            refusals.append((labels["namespace"], labels["job"]))
    assert ages == {"training": 95, "batch": 10}
    assert refusals == [("batch", "run-7")]


def test_only_the_platform_reports_a_broken_gpu(server: LogServer, source: CloudLogs) -> None:
    location = {
        "node": "n",
        "pool": "spot-a100",
        "zone": "z",
        "machine_type": "m",
        "capacity": "spot",
    }
    fault = line(
        EPOCH,
        "node_faulty",
        "",
        kind="node",
        fault="xid-79",
        answer="replaced",
        **location,
    )
    server.add_lines(
        sample.encoded([fault]), {"k8s-pod/app_kubernetes_io/name": "mover"}, "monitoring"
    )
    server.add_lines(sample.encoded([fault | {"t": EPOCH + 1}]), {}, "training")
    server.writer = "run-8"
    server.add([fault | {"t": EPOCH + 2}, fault | {"t": EPOCH + 3, "job": "run-8"}])
    jobs = follow(source)
    samples = {}
    for s in jobs.samples(EPOCH + 9, {}):
        samples[s.metric] = (s.value, dict(s.labels))
    assert samples["gpu_faults_total"] == (
        1,
        {
            "pool": "spot-a100",
            "fault": "xid-79",
            "answer": "replaced",
        },
    )


def test_a_pod_cannot_speak_for_another_job(server: LogServer, source: CloudLogs) -> None:
    """A forged commit would silence the alert on the age of the victim's checkpoint."""
    server.add(
        [line(EPOCH, "start", "victim", rank=0), line(EPOCH + 5, "commit", "victim", step=1)]
    )
    server.writer = "forger"
    server.add(
        [line(EPOCH + 90, "commit", "victim", step=9), line(EPOCH + 91, "start", "forger", rank=0)]
    )
    jobs = follow(source)
    [victim] = [run for name, run in jobs.runs.items() if name.job == "victim"]
    assert list(victim.commits) == [EPOCH + 5]
    assert list_jobs(jobs) == {"victim", "forger"}
    foreign = "lines about a job other than the one whose pod wrote them"
    assert dict(jobs.refused) == {("training", "forger", foreign): 1}
    assert len(source.of_job("victim", EPOCH).events) == 2
    server.add([line(EPOCH + 92, "start", "a", rank=0)])
    server.entries[-1]["labels"] = {"k8s-pod/app": "a"}
    source.turn()
    jobs.read()
    assert list_jobs(jobs) == {"victim", "forger"}, "a pod that names no job speaks for none"
    assert sum(jobs.refused.values()) == 2


def test_a_pod_may_write_about_its_own_index_only(server: LogServer, source: CloudLogs) -> None:
    labels = {
        "k8s-pod/holdfast_dev/job": "sweep",
        "k8s-pod/batch_kubernetes_io/job-completion-index": "3",
    }
    own_line = line(EPOCH, "start", "sweep", index=3)
    other_line = line(EPOCH, "start", "sweep", index=4)
    lines = sample.encoded([own_line, other_line])
    server.add_lines(lines, labels, "training", "sweep-3-abcde")
    labels = {"k8s-pod/holdfast_dev/job": "sweep"}
    server.add_lines(lines, labels, "training", "other")
    jobs = follow(source)
    (run,) = jobs.runs
    assert run.index == 3
