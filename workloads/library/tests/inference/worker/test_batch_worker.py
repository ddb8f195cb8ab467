import pytest

from holdfast.inference.items import Item
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.inference.harness import CountingPredictor, Harness, expected, items

pytestmark = pytest.mark.process  # PostgreSQL


def test_every_item_is_stored_once_and_a_publishers_duplicates_are_only_acked(
    harness: Harness,
) -> None:
    wanted = items(harness.job, 100)
    harness.enqueue(wanted)
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert harness.rows() == expected(wanted)
    for event in ("stored", "acked"):
        assert sum(e["items"] for e in harness.event_lines(event)) == 100
    harness.queue.publish(wanted)
    again = CountingPredictor()
    assert harness.worker(again).run() == EXIT_COMPLETE
    assert not again.seen
    assert harness.queue.pull(10, 0.0) == []


def test_an_item_that_fails_or_whose_value_cannot_be_stored_costs_its_neighbours_nothing(
    harness: Harness,
) -> None:
    odd = {
        b"nan": float("nan"),
        b"nul": "\x00",
        b"object": object(),
    }
    wanted = items(harness.job, 40)
    bad = [Item(job=harness.job, id=f"bad-{body}", body=body) for body in (b"\x00never", *odd)]

    class Odd(CountingPredictor):
        def predict(self, bodies):  # type: ignore[no-untyped-def]
            values = zip(bodies, super().predict(bodies), strict=True)
            return [{"score": odd[body]} if body in odd else value for body, value in values]

    harness.enqueue([*wanted, *bad])
    assert harness.worker(Odd()).run() == EXIT_COMPLETE
    rows = harness.rows()
    assert {rows.pop(item.id)[0] for item in bad} == {"dead"}
    assert rows == expected(wanted)
    failures = [e["failures"] for e in harness.event_lines("item_failed") if e["item"] == bad[0].id]
    assert failures == [1, 2, 3]
    assert {e["item"] for e in harness.event_lines("dead_lettered")} == {item.id for item in bad}


def test_a_zombie_cannot_write_after_its_fence_is_void(harness: Harness) -> None:
    harness.enqueue(items(harness.job, 1))
    zombie = harness.results(CountingPredictor(), "zombie")
    heir = harness.results(CountingPredictor(), "heir")
    old = zombie.claim(["item-00000"])["item-00000"]
    new = heir.claim(["item-00000"])["item-00000"]
    assert zombie.store({old: '{"score": 1}'}) == (set(), {"item-00000"})
    assert harness.rows()["item-00000"] == ("held", None)
    # Once more where the answer was lost: the same answer.
    for _ in range(2):
        assert heir.store({new: '{"score": 2}'}) == ({"item-00000"}, set())
    # Late once more: done is done, and the zombie may ack, but nothing changed.
    assert zombie.store({old: '{"score": 1}'}) == ({"item-00000"}, set())
    assert harness.rows()["item-00000"] == ("done", {"score": 2})
    assert heir.claim(["item-00000"]) == {}


def test_an_item_leaves_the_queue_only_after_its_result_is_durable(harness: Harness) -> None:
    """A kill in between gives the item to another worker, which finds it done; the other order
    would lose it.
    """
    harness.enqueue(items(harness.job, 1))
    steps: list[tuple[Failpoint, int, int]] = []

    def look(point: Failpoint) -> None:
        waiting = harness.one("SELECT count(*) FROM holdfast.queue WHERE job = %(job)s")
        done = harness.one(
            "SELECT count(*) FROM holdfast.result WHERE job = %(job)s AND status = 'done'"
        )
        steps.append((point, waiting, done))

    harness.worker(CountingPredictor(), at=look).run()
    assert [point for point, _, _ in steps] == list(Failpoint)
    assert steps[-2:] == [(Failpoint.COMMITTED, 1, 1), (Failpoint.ACKED, 0, 1)]
