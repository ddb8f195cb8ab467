"""What the exporter says of jobs, from the lines they write."""

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.contract.job_identity import JobIdentity
from holdfast.exporter.cluster import Cluster
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter, Outputs, one_pass
from holdfast.exporter.sources import Folder
from workloads.library.tests import sample
from workloads.library.tests.exporter.test_cluster import node
from workloads.library.tests.sample import EPOCH, line


def jobs_of(folder: Path, *lines: Any) -> Jobs:
    folder.mkdir(exist_ok=True)
    sample.write(folder / "a.jsonl", lines)
    jobs = Jobs(Folder(folder))
    jobs.read()
    return jobs


def values(jobs: Jobs, now: float) -> dict[str, float]:
    return {s.metric: s.value for s in jobs.samples(now, dict.fromkeys(jobs.runs, EPOCH))}


def test_commit_age_and_its_usual_interval(tmp_path: Path) -> None:
    rows = [
        line(EPOCH, "start", rank=0),
        *(line(EPOCH + t, "commit", step=t, seconds=1, bytes=1) for t in (10, 40, 70, 130)),
    ]
    found = values(jobs_of(tmp_path, *rows), EPOCH + 200)
    assert (found["last_commit_age_seconds"], found["commit_interval_seconds"]) == (70, 30)


def test_loss_and_slowest_rank_are_those_of_the_newest_window(tmp_path: Path) -> None:
    rows = [line(EPOCH, "start", rank=0), line(EPOCH + 1, "window", first_step=1, last_step=9, seconds=1, loss=None)]
    found = values(jobs_of(tmp_path / "a", *rows), EPOCH + 5)
    assert found["loss_not_finite"] == 1 and "slowest_rank_ratio" not in found
    rows.append(line(EPOCH + 2, "window", seconds=1, loss=0.5, slowest_rank=3, slowest_by=2.5))
    found = values(jobs_of(tmp_path / "b", *rows), EPOCH + 5)
    assert (found["loss_not_finite"], found["slowest_rank_ratio"]) == (0, 2.5)


def test_a_job_without_a_commit_ages_from_its_start_and_a_complete_one_does_not(tmp_path: Path) -> None:
    assert values(jobs_of(tmp_path, line(EPOCH, "start", rank=0)), EPOCH + 50)["last_commit_age_seconds"] == 50
    done = jobs_of(tmp_path, line(EPOCH, "start", rank=0), line(EPOCH + 5, "exit", code=0, step=9))
    assert "last_commit_age_seconds" not in values(done, EPOCH + 50)


def test_crashes_count_until_the_next_save_or_result_and_evictions_never(tmp_path: Path) -> None:
    codes = enumerate((70, 143, 137, 1, 75))
    ends = [line(EPOCH + n, "exit", code=code, step=1, process=f"host-1{n}-ab") for n, code in codes]
    assert values(jobs_of(tmp_path, *ends), EPOCH + 9)["fruitless_restarts"] == 3
    stored = line(EPOCH + 8, "stored", items=3, seconds=1, process="host-9-a")
    for progress in (line(EPOCH + 8, "commit", step=2, seconds=1, bytes=1), stored):
        assert values(jobs_of(tmp_path, *ends, progress), EPOCH + 9)["fruitless_restarts"] == 0


def test_a_gang_that_falls_falls_once_however_many_pods_it_has(tmp_path: Path) -> None:
    def attempt(n: int, starts: bool) -> list[Any]:
        hosts = [f"run-workers-0-{pod}-1-a{n}" for pod in range(4)]
        begun = [line(EPOCH + 10 * n, "start", rank=rank, process=host) for rank, host in enumerate(hosts) if starts]
        return begun + [line(EPOCH + 10 * n + 5, "exit", code=75, step=0, process=host) for host in hosts]

    for starts in (True, False):  # False: it falls before it says a word
        rows = [row for n in range(3) for row in attempt(n, starts)]
        for count in (1, 2, 3):
            found = values(jobs_of(tmp_path, *rows[: count * len(rows) // 3]), EPOCH + 40)
            assert found["fruitless_restarts"] == count


def test_a_gang_below_its_size_ages_from_its_first_loss(tmp_path: Path) -> None:
    def sizes(*found: tuple[int, int]) -> list[Any]:
        rows = [line(EPOCH + at, "resized", step=at, nodes=nodes, of=8, seconds=0.1) for at, nodes in found]
        return [line(EPOCH, "start", rank=0), *rows, works]

    works = line(EPOCH + 380, "window", first_step=1, last_step=9, seconds=9.0)
    name = "gang_below_size_seconds"
    assert values(jobs_of(tmp_path / "whole", *sizes((1, 8))), EPOCH + 60)[name] == 0
    lost = sizes((1, 8), (100, 7), (200, 6), (300, 7))
    assert values(jobs_of(tmp_path / "lost", *lost), EPOCH + 400)[name] == 300
    assert (
        values(jobs_of(tmp_path / "back", *sizes((1, 8), (100, 7), (200, 6), (300, 7), (350, 8))), EPOCH + 400)[name]
        == 0
    )
    rigid = jobs_of(tmp_path / "rigid", line(EPOCH, "start", rank=0))
    assert name not in values(rigid, EPOCH + 400)
    ended = jobs_of(tmp_path / "ended", *lost, line(EPOCH + 390, "exit", code=0, step=9))
    assert name not in values(ended, EPOCH + 400)


def test_a_wait_for_capacity_lowers_the_share_of_wall_time_and_not_that_of_paid_time(tmp_path: Path) -> None:
    rows = [
        line(EPOCH, "start", rank=0, process="host-1-a"),
        line(EPOCH + 100, "window", first_step=1, last_step=100, seconds=100, process="host-1-a"),
        line(EPOCH + 100, "exit", code=143, step=100, process="host-1-b"),
        line(EPOCH + 400, "scheduled", seconds=300, node="n", pool="p", capacity="spot", accelerator="a"),
        line(EPOCH + 400, "start", rank=0, process="host-1-c"),
        line(EPOCH + 500, "window", first_step=101, last_step=200, seconds=100, process="host-1-c"),
    ]
    found = values(jobs_of(tmp_path, *rows), EPOCH + 500)
    assert (found["goodput_ratio"], found["useful_paid_ratio"]) == (0.4, 1.0)


def test_a_job_that_waits_for_its_first_node_has_no_state_yet(tmp_path: Path) -> None:
    waits = line(EPOCH, "scheduled", seconds=300, node="n", pool="p", capacity="spot", accelerator="a")
    assert values(jobs_of(tmp_path, waits), EPOCH + 9000) == {}


def test_files_are_followed_and_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, line(EPOCH, "start", rank=0))
    text = json.dumps(line(EPOCH + 5, "commit", step=1, seconds=1, bytes=1))
    with (tmp_path / "a.jsonl").open("a") as handle:
        handle.write(text[:20])
        handle.flush()
        jobs.read()
        assert not jobs.refused
        handle.write(text[20:] + "\n")
    jobs.read()
    assert values(jobs, EPOCH + 6)["last_commit_age_seconds"] == 1
    assert not jobs.refused


def test_a_silent_job_is_dropped_after_a_week(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, line(EPOCH, "start", rank=0))
    assert list(jobs.samples(EPOCH + 8 * 86_400, {})) == []
    assert jobs.runs == {}


def test_one_pass_is_served_to_prometheus(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("ADDED", node("a"))
    jobs = jobs_of(tmp_path, *sample.training("run-7", kills=((13.0, "SIGKILL"),)))
    exporter = Exporter(cluster, threading.Lock(), jobs, lambda: EPOCH + 100)
    one_pass(exporter, Outputs(lines=tmp_path / "watcher.jsonl"))
    server, thread = exporter.newest.serve(0)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
        text = answer.read().decode()
    assert server.server_address[0] == "127.0.0.1", "of a laptop only itself"
    server.shutdown()
    server.server_close()
    thread.join()
    assert 'holdfast_preemptions_total{pool="spot-l4",zone="us-central1-a"} 0.0' in text
    [beat] = [row for row in text.splitlines() if row.startswith("holdfast_exporter_heartbeat_seconds ")]
    assert float(beat.split()[1]) == EPOCH + 100
    assert 'holdfast_goodput_ratio{job="run-7",namespace="training"} 0.8' in text


def test_an_exporter_that_starts_anew_does_not_count_again_what_was_published(tmp_path: Path) -> None:
    rows = [
        line(EPOCH, "item_failed", "job", "batch", item="a", error_class="database", failures=1),
        line(EPOCH + 500, "dead_lettered", "job", "batch", item="a", reason="poison"),
    ]
    sample.write(tmp_path / "a.jsonl", rows)
    jobs = Jobs(Folder(tmp_path), since_s=EPOCH + 100)
    jobs.read()
    found = values(jobs, EPOCH + 600)
    assert (found["batch_failures_total"], found["dead_letters_total"]) == (0, 1)


COMMITS = [line(EPOCH, "start", rank=0), *(line(EPOCH + t, "commit", step=t, seconds=1, bytes=1) for t in (100, 200))]
LEFT = [line(EPOCH + 230, "stop", step=230, reason="SIGTERM"), line(EPOCH + 240, "exit", code=143, step=230)]
JOB = JobIdentity(namespace="training", job="job")


def age(jobs: Jobs, now: float, running: dict[JobIdentity, float]) -> float | None:
    return {s.metric: s.value for s in jobs.samples(now, running)}.get("last_commit_age_seconds")


def test_a_job_that_waits_for_a_node_does_not_age(tmp_path: Path) -> None:
    """A drought of five hours, and a cancelled job, are no reason to get up."""
    jobs = jobs_of(tmp_path, *COMMITS, *LEFT)
    assert age(jobs, EPOCH + 5 * 3600, {}) is None
    assert age(jobs, EPOCH + 5 * 3600 + 60, {JOB: EPOCH + 5 * 3600}) == 40 + 60


def test_time_without_a_commit_adds_up_over_attempts(tmp_path: Path) -> None:
    """Evicted every ten minutes and never saved: somebody has to know."""
    rows = [line(EPOCH, "start", rank=0), line(EPOCH + 1, "commit", step=1, seconds=1, bytes=1)]
    for n in range(1, 6):
        begin = EPOCH + 3600 * n
        rows += [line(begin, "start", process=f"p{n}", rank=0), line(begin + 600, "exit", process=f"p{n}", code=143)]
    assert age(jobs_of(tmp_path, *rows), EPOCH + 40_000, {JOB: EPOCH + 40_000}) == 5 * 600


def test_an_attempt_is_held_to_the_interval_once_it_could_have_saved_twice(tmp_path: Path) -> None:
    """Nine minutes lost without notice, a slow start, nine minutes until the next save: an ordinary day on Spot."""
    back = line(EPOCH + 1_000, "restore", step=200, seconds=1, skipped=[])
    jobs = jobs_of(tmp_path, *COMMITS, back)

    def held(now: float) -> bool:
        return "commit_interval_seconds" in {s.metric for s in jobs.samples(now, {JOB: EPOCH + 500})}

    assert [held(EPOCH + t) for t in (900, 1_199, 1_201)] == [False, False, True]


def test_a_process_that_hangs_goes_on_ageing_although_it_writes_nothing(tmp_path: Path) -> None:
    assert age(jobs_of(tmp_path, *COMMITS), EPOCH + 7200, {JOB: EPOCH - 5}) == 7000


def test_runs_by_index_age_apart(tmp_path: Path) -> None:
    rows = [line(EPOCH + n, "commit", step=1, process=f"p{n}", index=n, seconds=1, bytes=1) for n in (0, 1)]
    jobs = jobs_of(tmp_path, *rows)
    running = {JobIdentity(namespace="training", job="job", index=1): EPOCH}
    found = [s.labels for s in jobs.samples(EPOCH + 9, running) if s.metric == "last_commit_age_seconds"]
    assert found == [(("index", "1"), ("job", "job"), ("namespace", "training"))]


def test_what_an_ended_job_was_like_is_no_news_after_an_hour(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, *COMMITS, line(EPOCH + 230, "exit", code=1, step=230))
    states = {"goodput_ratio", "fruitless_restarts"}
    assert states <= {s.metric for s in jobs.samples(EPOCH + 600, {})}
    assert not states & {s.metric for s in jobs.samples(EPOCH + 4000, {})}
