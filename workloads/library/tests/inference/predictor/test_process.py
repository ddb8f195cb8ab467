"""Tests of items that kill or hang the predicting process, and of deaths by other causes."""

import threading
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.inference.errors import ItemFault, ProcessDied
from holdfast.inference.items import Item
from holdfast.inference.predictor.batch_time import BatchTime
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.results import dead_letters
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.inference.worker.triage import bound_s
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_DATABASE, ENV_GPUS
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.inference.harness import QUICK, Harness
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
FAULTY = "workloads.library.tests.inference.server.playing_predictors:faulty"
SETTINGS = replace(QUICK, settle_s=0.05)
BOUND_S = 6.0


@pytest.fixture
def harness(harness: Harness) -> Harness:
    harness.settings = SETTINGS
    return harness


@contextmanager
def start_predictor(*, timeout_s: float = 60.0) -> Generator[ProcessPredictor]:
    with closing(ProcessPredictor(PredictorSpec(name=FAULTY), timeout_s=timeout_s)) as predictor:
        predictor.load()
        yield predictor


def make_items(job: str, *bodies: str) -> list[Item]:
    documents: list[Item] = []
    for n, body in enumerate(bodies):
        documents.append(
            Item(
                job=job,
                id=f"{n:02d} {body}",
                body=body.encode(),
            )
        )
    return documents


def test_items_that_kill_the_process_are_dead_and_all_others_done(harness: Harness) -> None:
    deadly = ("segfault", "exit", "kill")
    good = ["good"] * 6
    harness.enqueue(make_items(harness.job, *good, *deadly, *good))
    with start_predictor() as predictor:
        assert harness.worker(predictor).run() == EXIT_COMPLETE
    for item, (status, _) in harness.rows().items():
        body = item.split()[1]
        assert status == ("dead" if body in deadly else "done"), item
    letters = dead_letters.list_newest(harness.connection, harness.job, 9)
    assert len(letters) == 3
    for letter in letters:
        assert letter["reason"] == "ProcessDied"
        assert letter["failures"] == 3
    messages = " ".join(str(letter["message"]) for letter in letters)
    for text in ("SIGSEGV", "exited with 3", "SIGKILL"):
        assert text in messages


@pytest.mark.parametrize(
    ("fault", "timeout_s"), [("segfault", 60.0), ("broken", 60.0), ("hang", 1.0)]
)
def test_a_broken_device_counts_against_no_item(
    harness: Harness, fault: str, timeout_s: float
) -> None:
    harness.enqueue(make_items(harness.job, *[fault] * 4))
    with start_predictor(timeout_s=timeout_s) as predictor:
        assert harness.worker(predictor).run() == EXIT_RETRY
    assert not harness.event_lines("item_failed")
    assert len(harness.queue.pull(9, 0.0)) == 4, "released at once"


def test_a_death_before_an_eviction_counts_against_no_item(harness: Harness) -> None:
    """The child of a lost node may die a moment before the worker gets its notice."""
    harness.settings = replace(QUICK, settle_s=60.0)
    harness.enqueue(make_items(harness.job, "segfault"))
    shutdown = Shutdown()
    with start_predictor() as predictor:

        def evict_once_dead() -> None:
            until(lambda: predictor.pid is None)
            shutdown.request("eviction")

        threading.Thread(target=evict_once_dead, daemon=True).start()
        assert harness.worker(predictor, shutdown).run() == EXIT_PREEMPTED
    assert not harness.event_lines("item_failed")


def test_the_predicting_process_has_no_access_to_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENV_DATABASE, "postgresql://user:secret@host/db")
    monkeypatch.setenv("PGPASSWORD", "secret")
    with start_predictor() as predictor:
        for name in (ENV_DATABASE, "PGPASSWORD"):
            assert predict_text(predictor, f"environment {name}") == "nothing"
        assert predict_text(predictor, "environment PATH") != "nothing"


def predict_text(predictor: ProcessPredictor, text: str) -> object:
    (value,) = predictor.predict([text.encode()])
    return value["said"]


def test_micro_batches_sent_ahead_are_predicted_and_fail_alone(tmp_path: Path) -> None:
    """The next micro-batches are in the process while a failed one is tried in halves."""
    first = str(tmp_path / "first")
    second = str(tmp_path / "second")
    with start_predictor() as predictor:
        for text in (first, second):
            predictor.prepare([text.encode()])
        until((tmp_path / "second").exists)
        assert predict_text(predictor, second) == second
        assert predict_text(predictor, first) == first
        for batch in ([b"raise", b"good"], [b"segfault"], [b"behind"]):
            predictor.prepare(batch)
        with pytest.raises(ItemFault, match="asked to"):
            predictor.predict([b"raise", b"good"])
        assert predict_text(predictor, "good") == "good", "it is not at fault"
        with pytest.raises(ProcessDied, match="SIGSEGV"):
            predictor.predict([b"segfault"])
        assert predict_text(predictor, "behind") == "behind"
        # Requests and replies larger than a pipe do not block each other.
        batches = []
        for byte in (b"a", b"b", b"c"):
            batches.append([byte * 300_000] * 10)
        for batch in batches:
            predictor.prepare(batch)
        for batch in batches:
            assert len(predictor.predict(batch)) == 10


def test_a_missing_promised_gpu_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """No predictor uses the CPU at the price of a GPU."""
    monkeypatch.setenv(ENV_GPUS, "64")
    with pytest.raises(InputError, match="the pod has GPUs configured"), start_predictor():
        pass


def test_a_stop_releases_the_micro_batch_that_was_sent_ahead(
    harness: Harness, tmp_path: Path
) -> None:
    harness.settings = replace(SETTINGS, micro_batch=4, fill_s=5.0)
    paths = []
    for n in range(40):
        paths.append(str(tmp_path / f"{n:02d}"))
    harness.enqueue(make_items(harness.job, *paths))
    shutdown = Shutdown()

    def evict(step: Failpoint) -> None:
        # The second micro-batch is already in the process.
        if step is Failpoint.PREDICTED and (tmp_path / "07").exists():
            shutdown.request("eviction")

    with start_predictor() as predictor:
        assert harness.worker(predictor, shutdown, evict).run() == EXIT_PREEMPTED
    states = Counter(status for status, _ in harness.rows().values())
    assert states["done"] in range(4, 40, 4), "whole micro-batches are committed"
    leases = harness.queue.pull(99, 0.0)
    assert len(leases) == 40 - states["done"], "other workers get the rest at once"
    assert states["held"] == 0


def test_a_hanging_item_fails_and_other_workers_get_the_rest(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ProcessPredictor.load
    loads: list[ProcessPredictor] = []

    def count_load(predictor: ProcessPredictor) -> None:
        loads.append(predictor)
        load(predictor)

    monkeypatch.setattr(ProcessPredictor, "load", count_load)
    harness.settings = replace(SETTINGS, micro_batch=16, max_failures=1)
    harness.enqueue(make_items(harness.job, *["good"] * 40, "hang", *["good"] * 60))

    def pull_released() -> int:
        until(lambda: harness.event_lines("released"))
        leases = harness.queue.pull(99, 0.0)
        harness.queue.release(leases)
        return len(leases)

    with ThreadPoolExecutor(1) as pool, start_predictor(timeout_s=BOUND_S) as predictor:
        released = pool.submit(pull_released)
        assert harness.worker(predictor).run() == EXIT_COMPLETE
    assert len(loads) == 3, "it hung with its micro-batch and alone, and no other item did"
    assert released.result() >= 16, "items that waited for the overdue micro-batch"
    statuses = {}
    for item, (status, _) in harness.rows().items():
        statuses[item] = status
    assert statuses.pop("40 hang") == "dead"
    assert set(statuses.values()) == {"done"}
    assert harness.event_lines("overdue")[0]["seconds"] <= BOUND_S / 2
    assert "overdue" in caplog.text


def test_the_timeout_is_learned_and_grows_with_failures() -> None:
    timing = BatchTime()
    assert bound_s(timing, 8, 0, most_s=300.0) == 300.0, "a first batch may compile kernels"
    for count in (1, 8):
        timing.observe(count, 0.5 * count)
    assert bound_s(timing, 8, 0, most_s=300.0) == pytest.approx(80.0)
    assert bound_s(timing, 1, 0, most_s=300.0) == 30.0
    assert bound_s(timing, 1, 2, most_s=300.0) == 120.0, "a slow item does not hang"
    assert bound_s(timing, 8, 100_000, most_s=300.0) == 300.0
