"""Tests of the batch worker's guarantees: one result for each item, and acks after commits."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import psycopg
import pytest

from holdfast.inference.items import Item
from holdfast.inference.results.postgres import Failure, PostgresResults
from holdfast.inference.values import Value
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.inference.harness import (
    QUICK,
    CountingPredictor,
    Harness,
    expect_rows,
    items,
)

pytestmark = pytest.mark.process  # PostgreSQL


def test_items_are_stored_once_and_duplicates_only_acked(harness: Harness) -> None:
    documents = items(harness.job, 100)
    harness.enqueue(documents)
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert harness.rows() == expect_rows(documents)
    assert harness.count_items("stored") == 100
    assert harness.count_items("acked") == 100
    harness.queue.publish(documents)
    predictor = CountingPredictor()
    assert harness.worker(predictor).run() == EXIT_COMPLETE
    assert not predictor.counts
    assert harness.queue.pull(10, 0.0) == []


BAD_VALUES: dict[bytes, object] = {
    b"nan": float("nan"),
    b"nul": "\x00",
    b"object": object(),
}


class BadValuePredictor(CountingPredictor):
    """Returns values that cannot be stored for the bodies of BAD_VALUES."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        values = super().predict(bodies)
        for position, body in enumerate(bodies):
            if body in BAD_VALUES:
                values[position] = {"score": BAD_VALUES[body]}
        return values


def test_failing_items_do_not_affect_their_neighbors(harness: Harness) -> None:
    documents = items(harness.job, 40)
    bad_items: list[Item] = []
    for body in (b"\x00never", *BAD_VALUES):
        bad_items.append(Item(job=harness.job, id=f"bad-{body}", body=body))
    harness.enqueue([*documents, *bad_items])
    assert harness.worker(BadValuePredictor()).run() == EXIT_COMPLETE
    rows = harness.rows()
    for item in bad_items:
        assert rows.pop(item.id)[0] == "dead"
    assert rows == expect_rows(documents)
    failures: list[int] = []
    for line in harness.event_lines("item_failed"):
        if line["item"] == bad_items[0].id:
            failures.append(line["failures"])
    assert failures == [1, 2, 3]
    letters = {line["item"] for line in harness.event_lines("dead_lettered")}
    assert letters == {item.id for item in bad_items}


def run_with_first_failure(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    report: Callable[[Callable[[], object]], object],
) -> None:
    """Runs a worker with one bad item; `report` makes its first report of a failure."""
    fail = PostgresResults.fail
    calls: list[int] = []

    def fail_once(
        results: PostgresResults, failures: Sequence[Failure], limit: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        calls.append(len(failures))
        if len(calls) == 1:
            report(lambda: fail(results, failures, limit))
        return fail(results, failures, limit)

    monkeypatch.setattr(PostgresResults, "fail", fail_once)
    harness.enqueue([Item(job=harness.job, id="bad", body=b"\x00never")])
    codes: list[int] = []
    worker = harness.worker(CountingPredictor())
    thread = threading.Thread(target=lambda: codes.append(worker.run()), daemon=True)
    thread.start()
    thread.join(30.0)
    assert codes == [EXIT_COMPLETE]


@pytest.mark.parametrize("max_failures", [1, 2])
def test_a_failure_whose_response_is_lost_counts_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, max_failures: int
) -> None:
    def lose_response(fail: Callable[[], object]) -> None:
        fail()
        raise psycopg.OperationalError("connection lost")

    harness.settings = replace(QUICK, max_failures=max_failures)
    run_with_first_failure(harness, monkeypatch, lose_response)
    assert harness.rows()["bad"][0] == "dead"
    failures = [line["failures"] for line in harness.event_lines("item_failed")]
    assert failures == [*range(1, max_failures + 1)]
    assert not harness.query_value("SELECT count(*) FROM holdfast.queue WHERE job = %(job)s")


def test_a_zombies_failure_counts_nothing_and_it_ends(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_over(_: object) -> None:
        heir = harness.results(CountingPredictor(), "heir")
        heir.store({heir.claim(["bad"])["bad"]: '{"score": 1}'})

    run_with_first_failure(harness, monkeypatch, take_over)
    assert harness.rows() == {"bad": ("done", {"score": 1})}
    assert harness.event_lines("item_failed") == []


def test_a_zombie_cannot_write_after_its_fence_is_void(harness: Harness) -> None:
    harness.enqueue(items(harness.job, 1))
    zombie = harness.results(CountingPredictor(), "zombie")
    heir = harness.results(CountingPredictor(), "heir")
    old = zombie.claim(["item-00000"])["item-00000"]
    new = heir.claim(["item-00000"])["item-00000"]
    assert zombie.store({old: '{"score": 1}'}) == (set(), {"item-00000"})
    assert harness.rows()["item-00000"] == ("held", None)
    # Repeated after a lost response, it has the same result.
    for _ in range(2):
        assert heir.store({new: '{"score": 2}'}) == ({"item-00000"}, set())
    # Later the zombie may ack the finished item, and changes nothing.
    assert zombie.store({old: '{"score": 1}'}) == ({"item-00000"}, set())
    assert harness.rows()["item-00000"] == ("done", {"score": 2})
    assert heir.claim(["item-00000"]) == {}


def test_an_item_is_acked_only_after_its_result_is_durable(harness: Harness) -> None:
    """Another worker finds the item done after a kill in between; the other order loses it."""
    harness.enqueue(items(harness.job, 1))
    steps: list[tuple[Failpoint, int, int]] = []

    def record(point: Failpoint) -> None:
        waiting = harness.query_value("SELECT count(*) FROM holdfast.queue WHERE job = %(job)s")
        done = harness.query_value(
            "SELECT count(*) FROM holdfast.result WHERE job = %(job)s AND status = 'done'"
        )
        steps.append((point, waiting, done))

    harness.worker(CountingPredictor(), at=record).run()
    points = [point for point, _, _ in steps]
    assert points == list(Failpoint)
    assert steps[-2:] == [(Failpoint.COMMITTED, 1, 1), (Failpoint.ACKED, 0, 1)]
