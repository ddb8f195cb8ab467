"""Tests the exporter's metrics of jobs, from the lines that they write."""

import re
import urllib.request
from typing import Any

from holdfast.controllers.cluster import Cluster
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter
from holdfast.vocabulary.job_identity import JobIdentity
from workloads.library.tests import sample
from workloads.library.tests.controllers.test_cluster import node
from workloads.library.tests.exporter.fake_source import read_jobs
from workloads.library.tests.sample import EPOCH, Line, line

JOB = JobIdentity(namespace="training", job="job")
START = line(EPOCH, "start", rank=0)


def commit(after_s: float, **fields: Any) -> Line:
    return line(
        EPOCH + after_s,
        "commit",
        step=1,
        seconds=1,
        bytes=1,
        **fields,
    )


def read_samples(jobs: Jobs, after_s: float, running: dict[JobIdentity, float]) -> dict[str, float]:
    """Returns metric -> value. `running`: run -> seconds after EPOCH at which its pods started."""
    since: dict[JobIdentity, float] = {}
    for run, start_s in running.items():
        since[run] = EPOCH + start_s
    return {s.metric: s.value for s in jobs.samples(EPOCH + after_s, since)}


def values(rows: list[Line], after_s: float) -> dict[str, float]:
    """Returns the metrics of jobs whose pods run since EPOCH."""
    jobs = read_jobs(*rows)
    return read_samples(jobs, after_s, dict.fromkeys(jobs.runs, 0.0))


def test_commit_age_and_its_usual_interval() -> None:
    metrics = values([START, *map(commit, (10, 40, 70, 130))], 200)
    assert (metrics["last_commit_age_seconds"], metrics["commit_interval_seconds"]) == (70, 30)
    assert values([START], 50)["last_commit_age_seconds"] == 50, (
        "without a commit it ages from its start"
    )
    assert "last_commit_age_seconds" not in values(
        [START, line(EPOCH + 5, "exit", code=0, step=9)], 50
    )


def test_loss_and_slowest_rank_follow_the_newest_window() -> None:
    rows = [
        START,
        line(
            EPOCH + 1,
            "window",
            first_step=1,
            last_step=9,
            seconds=1,
            loss=None,
        ),
    ]
    metrics = values(rows, 5)
    assert metrics["loss_not_finite"] == 1 and "slowest_rank_ratio" not in metrics
    metrics = values(
        [
            *rows,
            line(
                EPOCH + 2,
                "window",
                seconds=1,
                loss=0.5,
                slowest_rank=3,
                slowest_by=2.5,
            ),
        ],
        5,
    )
    assert (metrics["loss_not_finite"], metrics["slowest_rank_ratio"]) == (0, 2.5)


def test_crashes_count_until_the_next_save_and_evictions_never() -> None:
    codes = enumerate((70, 143, 137, 1, 75))
    ends = []
    for n, code in codes:
        ends.append(
            line(
                EPOCH + n,
                "exit",
                code=code,
                step=1,
                process=f"host-1{n}-ab",
            )
        )
    assert values(ends, 9)["fruitless_restarts"] == 3
    for progress in (
        commit(8),
        line(
            EPOCH + 8,
            "stored",
            items=3,
            seconds=1,
            process="host-9-a",
        ),
    ):
        assert values([*ends, progress], 9)["fruitless_restarts"] == 0


def test_a_gang_crash_counts_once() -> None:
    def attempt(n: int, starts: bool) -> list[Line]:
        hosts = [f"run-workers-0-{pod}-1-a{n}" for pod in range(4)]
        lines = []
        if starts:
            for rank, host in enumerate(hosts):
                lines.append(line(EPOCH + 10 * n, "start", rank=rank, process=host))
        for host in hosts:
            lines.append(line(EPOCH + 10 * n + 5, "exit", code=75, step=0, process=host))
        return lines

    for starts in (True, False):  # False: it crashes before its start line
        for count in (1, 2, 3):
            rows = []
            for n in range(count):
                rows += attempt(n, starts)
            assert values(rows, 40)["fruitless_restarts"] == count


def test_a_gang_below_its_size_ages_from_its_first_loss() -> None:
    name = "gang_below_size_seconds"

    def sizes(*changes: tuple[int, int]) -> list[Line]:
        rows = []
        for after_s, nodes in changes:
            rows.append(
                line(
                    EPOCH + after_s,
                    "resized",
                    step=after_s,
                    nodes=nodes,
                    of=8,
                    seconds=0.1,
                )
            )
        return [
            START,
            *rows,
            line(
                EPOCH + 380,
                "window",
                first_step=1,
                last_step=9,
                seconds=9.0,
            ),
        ]

    losses = ((1, 8), (100, 7), (200, 6), (300, 7))
    assert values(sizes((1, 8)), 60)[name] == 0
    assert values(sizes(*losses), 400)[name] == 300
    assert values(sizes(*losses, (350, 8)), 400)[name] == 0
    assert name not in values([START], 400), "it is rigid"
    assert name not in values([*sizes(*losses), line(EPOCH + 390, "exit", code=0, step=9)], 400), (
        "it has ended"
    )


def test_a_wait_for_capacity_is_not_paid_time() -> None:
    rows = [
        line(EPOCH, "start", rank=0, process="host-1-a"),
        line(
            EPOCH + 100,
            "window",
            first_step=1,
            last_step=100,
            seconds=100,
            process="host-1-a",
        ),
        line(
            EPOCH + 100,
            "exit",
            code=143,
            step=100,
            process="host-1-b",
        ),
        line(
            EPOCH + 400,
            "scheduled",
            seconds=300,
            node="n",
            pool="p",
            capacity="spot",
            accelerator="a",
        ),
        line(EPOCH + 400, "start", rank=0, process="host-1-c"),
        line(
            EPOCH + 500,
            "window",
            first_step=101,
            last_step=200,
            seconds=100,
            process="host-1-c",
        ),
    ]
    metrics = values(rows, 500)
    assert (metrics["goodput_ratio"], metrics["useful_paid_ratio"]) == (0.4, 1.0)
    assert values(rows[3:4], 9000) == {}, "it waits for its first node"


def test_one_pass_is_served_to_prometheus() -> None:
    cluster = Cluster()
    cluster.node("ADDED", node("a"))
    jobs = read_jobs(*sample.training("run-7", kills=((13.0, "SIGKILL"),)))
    exporter = Exporter(
        cluster=cluster,
        jobs=jobs,
        clock=lambda: EPOCH + 100,
    )
    exporter.one_pass()
    server, thread = exporter.newest.serve(0)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
        text = answer.read().decode()
    server.shutdown()
    server.server_close()
    thread.join()
    assert 'holdfast_preemptions_total{pool="spot-l4",zone="us-central1-a"} 0.0' in text
    series = "holdfast_exporter_heartbeat_seconds "
    (beat,) = re.findall(rf"^{series}(.*)$", text, re.MULTILINE)
    assert float(beat) == EPOCH + 100
    assert 'holdfast_goodput_ratio{job="run-7",namespace="training"} 0.8' in text


def test_a_restarted_exporter_does_not_count_again() -> None:
    failed = line(
        EPOCH,
        "item_failed",
        "job",
        "batch",
        item="a",
        error_class="database",
        failures=1,
    )
    dead = line(
        EPOCH + 500,
        "dead_lettered",
        "job",
        "batch",
        item="a",
        reason="poison",
    )
    metrics = read_samples(read_jobs(failed, dead, since_s=EPOCH + 100), 600, {})
    assert (metrics["batch_failures_total"], metrics["dead_letters_total"]) == (0, 1)


# The age of the last commit of a job that does not run all the time.

COMMITS = [START, commit(100), commit(200)]


def age(rows: list[Line], after_s: float, running: dict[JobIdentity, float]) -> float | None:
    return read_samples(read_jobs(*rows), after_s, running).get("last_commit_age_seconds")


def test_a_job_that_waits_for_a_node_does_not_age() -> None:
    """Five hours without capacity, and a cancelled job, must not page anybody."""
    exit_lines = [
        line(EPOCH + 230, "stop", step=230, reason="SIGTERM"),
        line(EPOCH + 240, "exit", code=143, step=230),
    ]
    assert age([*COMMITS, *exit_lines], 5 * 3600, {}) is None
    assert age([*COMMITS, *exit_lines], 5 * 3600 + 60, {JOB: 5 * 3600}) == 40 + 60


def test_time_without_a_commit_adds_up_over_attempts() -> None:
    """A job that is evicted every ten minutes and never saves must page."""
    rows = [START, commit(1)]
    for n in range(1, 6):
        begin = EPOCH + 3600 * n
        rows += [
            line(begin, "start", process=f"p{n}", rank=0),
            line(begin + 600, "exit", process=f"p{n}", code=143),
        ]
    assert age(rows, 40_000, {JOB: 40_000}) == 5 * 600


def test_an_attempt_owes_a_commit_after_two_intervals() -> None:
    """Nine minutes lost without notice, a slow start, nine minutes until a save are ordinary."""
    jobs = read_jobs(
        *COMMITS,
        line(
            EPOCH + 1_000,
            "restore",
            step=200,
            seconds=1,
            skipped=[],
        ),
    )
    reported = []
    for after_s in (900, 1_199, 1_201):
        reported.append("commit_interval_seconds" in read_samples(jobs, after_s, {JOB: 500}))
    assert reported == [False, False, True]


def test_a_hanging_process_ages_although_it_is_silent() -> None:
    assert age(COMMITS, 7200, {JOB: -5}) == 7000


def test_runs_by_index_age_apart() -> None:
    jobs = read_jobs(commit(0, process="p0", index=0), commit(1, process="p1", index=1))
    running = {JobIdentity(namespace="training", job="job", index=1): EPOCH}
    ages = []
    for s in jobs.samples(EPOCH + 9, running):
        if s.metric == "last_commit_age_seconds":
            ages.append(s.labels)
    assert ages == [(("index", "1"), ("job", "job"), ("namespace", "training"))]


def test_an_ended_job_is_hidden_after_an_hour_and_dropped_after_a_week() -> None:
    jobs = read_jobs(*COMMITS, line(EPOCH + 230, "exit", code=1))
    states = {"goodput_ratio", "fruitless_restarts"}
    assert states <= read_samples(jobs, 600, {}).keys()
    assert not states & read_samples(jobs, 4000, {}).keys()
    assert read_samples(jobs, 8 * 86_400, {}) == {} and jobs.runs == {}
