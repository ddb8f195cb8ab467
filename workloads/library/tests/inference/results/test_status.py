"""What people see of a job and its workers."""

import re
from dataclasses import replace

import pytest
from psycopg import Connection

from holdfast.inference.results.status import Status, read_status, table
from workloads.library.tests.inference.harness import CountingPredictor, Harness, items

STATUS = Status(
    job="nightly", fingerprint="f", total=2_000, done=1_500, held=64, failed=2, waiting=434, retried=64, failures=9,
    workers=2, preempted=3, killed=1, rate=12.5, eta_seconds=3_900.0, worker_seconds=7_200.0, oldest_seconds=9.0,
    replicas_wanted=4,
)  # fmt: skip


def test_people_see_what_is_done_what_is_left_and_who_works() -> None:
    shown = table(STATUS)
    for text in (
        "1,500 of 2,000 (75.0%)", "434", "2 for good, 9 errors", "12.5 items/s", "1 h 5 min", "2 now, 4 wanted",
        "3 with notice, 1 without; 64 items begun again", "2 h 0 min",
    ):  # fmt: skip
        assert text in shown
    assert re.search(r"^time to go +unknown$", table(replace(STATUS, eta_seconds=None)), re.M)


@pytest.mark.process
def test_a_worker_costs_from_its_start_to_now_or_to_its_last_sign_of_life(
    harness: Harness, connection: Connection, job: str
) -> None:
    harness.enqueue(items(job, 8))
    harness.worker(CountingPredictor()).run()
    cases = {
        "running": ("2 s", None, 100, (1, 0, 0)),
        "killed": ("90 s", None, 10, (0, 1, 0)),
        "left": ("50 s", "preempted", 50, (0, 0, 1)),
    }
    for name, (seen, ended, seconds, counts) in cases.items():
        with connection.transaction():
            connection.execute(
                "UPDATE holdfast.worker SET started_at = now() - interval '100 s', seen_at = now() - %s::interval,"
                " ended = %s, load_seconds = 60 WHERE job = %s",
                (seen, ended, job),
            )
        status = read_status(connection, job)
        assert status.worker_seconds == pytest.approx(seconds + 60, abs=20), (
            f"{name}: loading its model is paid for too"
        )
        assert (status.workers, status.killed, status.preempted) == counts, name
