import threading
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.contract.lifecycle import EXIT_COMPLETE, EXIT_PREEMPTED
from holdfast.inference.items import Item
from holdfast.inference.predictor.predictors import PredictorBroken
from holdfast.inference.results.results import Claim
from holdfast.inference.worker.steps import Step
from holdfast.inference.worker.worker import EXIT_DEVICE_LOST
from holdfast.runtime.shutdown import Shutdown
from tests.workloads.library.inference.parts import Bench, Tally, expected, items

pytestmark = pytest.mark.process  # PostgreSQL


@pytest.fixture
def bench(pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path) -> Bench:
    return Bench(pool=pool, connection=connection, job=job, events=tmp_path / "events.jsonl")


def test_every_item_is_stored_once_and_the_worker_ends_when_drained(bench: Bench) -> None:
    wanted = items(bench.job, 100)
    bench.enqueue(wanted)
    assert bench.worker(Tally()).run() == EXIT_COMPLETE
    assert bench.rows() == expected(wanted)
    assert sum(e["items"] for e in bench.told("stored")) == 100
    assert sum(e["items"] for e in bench.told("acked")) == 100


def test_done_items_are_acked_without_being_computed_again(bench: Bench) -> None:
    wanted = items(bench.job, 30)
    bench.enqueue(wanted)
    bench.worker(Tally()).run()
    assert bench.queue is not None
    bench.queue.publish(wanted)  # a publisher's duplicates
    again = Tally()
    assert bench.worker(again).run() == EXIT_COMPLETE
    assert not again.seen
    assert bench.queue.pull(10, 0.0) == []


def test_a_stop_gives_back_what_is_held_and_says_preempted(bench: Bench) -> None:
    bench.enqueue(items(bench.job, 200))
    shutdown = Shutdown()
    predictor = Tally(before=lambda: shutdown.request("test"))
    assert bench.worker(predictor, shutdown).run() == EXIT_PREEMPTED
    done = [item for item, (status, _) in bench.rows().items() if status == "done"]
    assert 0 < len(done) < 200
    assert sum(predictor.seen.values()) == len(done), "what was computed is committed"
    assert bench.queue is not None
    assert len(bench.queue.pull(500, 0.0)) == 200 - len(done), "the rest can be had at once"


def test_one_bad_item_costs_its_neighbours_nothing(bench: Bench) -> None:
    wanted = items(bench.job, 40)
    bad = Item(job=bench.job, id="bad", body=b"\x00never the less, secret-content-of-item")
    bench.enqueue([*wanted, bad])
    assert bench.worker(Tally()).run() == EXIT_COMPLETE
    rows = bench.rows()
    assert rows.pop("bad")[0] == "dead"
    assert rows == expected(wanted)
    assert [e["failures"] for e in bench.told("item_failed")] == [1, 2, 3]
    assert [e["item"] for e in bench.told("dead_lettered")] == ["bad"]


def test_letters_and_events_hold_nothing_of_the_item(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, connection: Connection
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "canary-in-environment")
    body = b"\x00never canary-in-content"
    bench.enqueue([Item(job=bench.job, id="bad", body=body)])

    class Talkative(Tally):
        def predict(self, bodies):  # type: ignore[no-untyped-def]
            raise ValueError(f"cannot read {bodies[0].decode()} with canary-in-environment password=canary-in-text")

    bench.worker(Talkative()).run()
    letters = connection.execute("SELECT * FROM holdfast.dead_letter WHERE job = %s", (bench.job,)).fetchall()
    errors = connection.execute("SELECT error FROM holdfast.result WHERE job = %s", (bench.job,)).fetchall()
    assert len(letters) == len(errors) == 1
    seen = f"{letters} {errors} {bench.events.read_text()}"
    assert "ValueError" in seen
    assert "canary" not in seen


def test_a_broken_device_counts_against_no_item(bench: Bench) -> None:
    bench.enqueue(items(bench.job, 20))

    def lose_device() -> None:
        raise PredictorBroken("gone")

    assert bench.worker(Tally(before=lose_device)).run() == EXIT_DEVICE_LOST
    failures = bench.connection.execute("SELECT sum(failures) FROM holdfast.result WHERE job = %s", (bench.job,))
    assert failures.fetchone() == (0,)
    assert bench.queue is not None
    assert len(bench.queue.pull(100, 0.0)) == 20


@pytest.mark.parametrize("value", [float("nan"), "\x00", object()])
def test_a_value_that_cannot_be_stored_is_the_items_failure(bench: Bench, value: object) -> None:
    bench.enqueue(items(bench.job, 1))

    class Odd(Tally):
        def predict(self, bodies):  # type: ignore[no-untyped-def]
            return [{"score": value} for _ in bodies]

    assert bench.worker(Odd()).run() == EXIT_COMPLETE
    assert [status for status, _ in bench.rows().values()] == ["dead"]


def test_two_workers_share_the_job(bench: Bench) -> None:
    wanted = items(bench.job, 300)
    bench.enqueue(wanted)
    predictors = [Tally(), Tally()]
    threads = [threading.Thread(target=bench.worker(p).run) for p in predictors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.rows() == expected(wanted)
    assert sum(sum(p.seen.values()) for p in predictors) == 300


def test_a_zombie_cannot_write_after_its_fence_is_void(bench: Bench) -> None:
    bench.enqueue(items(bench.job, 1))
    zombie, heir = bench.results(Tally(), "zombie"), bench.results(Tally(), "heir")
    old = zombie.claim(["item-00000"])["item-00000"]
    new = heir.claim(["item-00000"])["item-00000"]
    assert zombie.store({old: '{"score": 1}'}).void == {"item-00000"}
    assert bench.rows()["item-00000"] == ("held", None)
    assert heir.store({new: '{"score": 2}'}).done == {"item-00000"}
    # Late once more: done is done, and the zombie may ack, but nothing changed.
    assert zombie.store({old: '{"score": 1}'}).done == {"item-00000"}
    assert bench.rows()["item-00000"] == ("done", {"score": 2})
    assert heir.claim(["item-00000"]) == {}


def test_storing_again_after_a_lost_answer_changes_nothing(bench: Bench) -> None:
    bench.enqueue(items(bench.job, 2))
    results = bench.results(Tally())
    claims = results.claim(["item-00000", "item-00001"])
    values = {claim: '{"score": 1}' for claim in claims.values()}
    assert results.store(values) == results.store(values)
    assert results.store({Claim(item="item-00000", fence=-1): '{"score": 9}'}).done == {"item-00000"}
    assert bench.rows()["item-00000"] == ("done", {"score": 1})


def test_the_steps_come_in_the_order_that_makes_a_kill_harmless(bench: Bench) -> None:
    bench.enqueue(items(bench.job, 1))
    steps: list[Step] = []
    bench.worker(Tally(), at=steps.append).run()
    assert steps == list(Step)
