"""What kills the predicting process or hangs in it: counted against the item when it is the item's
fault, and only then.
"""

import threading
import time
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
from holdfast.inference.predictor.proxy import ProcessPredictor
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
def process(*, timeout_s: float = 60.0) -> Generator[ProcessPredictor]:
    with closing(ProcessPredictor(PredictorSpec(name=FAULTY), timeout_s=timeout_s)) as predictor:
        predictor.load()
        yield predictor


def bodies(job: str, *wanted: str) -> list[Item]:
    return [
        Item(
            job=job,
            id=f"{n:02d} {body}",
            body=body.encode(),
        )
        for n, body in enumerate(wanted)
    ]


def test_items_that_kill_the_process_are_dead_lettered_once_and_the_others_are_done(
    harness: Harness,
) -> None:
    deadly = ("segfault", "exit", "kill")
    good = ["good"] * 6
    wanted = bodies(harness.job, *good, *deadly, *good)
    harness.enqueue(wanted)
    with process() as predictor:
        assert harness.worker(predictor).run() == EXIT_COMPLETE
    states = {item: status for item, (status, _) in harness.rows().items()}
    assert states == {
        item.id: "dead" if item.body.decode() in deadly else "done" for item in wanted
    }
    letters = dead_letters.newest(harness.connection, harness.job, 9)
    assert [(letter["reason"], letter["failures"]) for letter in letters] == [
        ("ProcessDied", 3)
    ] * 3
    messages = " ".join(str(letter["message"]) for letter in letters)
    assert all(text in messages for text in ("SIGSEGV", "exited with 3", "SIGKILL"))


@pytest.mark.parametrize(
    ("fault", "timeout_s"), [("segfault", 60.0), ("broken", 60.0), ("hang", 1.0)]
)
def test_a_device_on_which_everything_fails_counts_against_no_item(
    harness: Harness, fault: str, timeout_s: float
) -> None:
    harness.enqueue(bodies(harness.job, *[fault] * 4))
    with process(timeout_s=timeout_s) as predictor:
        assert harness.worker(predictor).run() == EXIT_RETRY
    assert not harness.event_lines("item_failed")
    assert len(harness.queue.pull(9, 0.0)) == 4, "given back at once"


def test_a_process_that_dies_with_an_eviction_counts_against_no_item(harness: Harness) -> None:
    """As when a node goes: the child is gone a moment before the worker is asked to leave."""
    harness.settings = replace(QUICK, settle_s=60.0)
    harness.enqueue(bodies(harness.job, "segfault"))
    shutdown = Shutdown()
    with process() as predictor:

        def evict_once_dead() -> None:
            until(lambda: predictor.pid is None)
            shutdown.request("eviction")

        threading.Thread(target=evict_once_dead, daemon=True).start()
        assert harness.worker(predictor, shutdown).run() == EXIT_PREEMPTED
    assert not harness.event_lines("item_failed")


def test_the_predicting_process_sees_no_way_into_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENV_DATABASE, "postgresql://user:secret@host/db")
    monkeypatch.setenv("PGPASSWORD", "secret")
    with process() as predictor:
        assert said(predictor, f"environment {ENV_DATABASE}", "environment PGPASSWORD") == [
            "nothing",
            "nothing",
        ]
        assert said(predictor, "environment PATH") != ["nothing"]


def said(predictor: ProcessPredictor, *texts: str) -> list[object]:
    return [value["said"] for value in predictor.predict([text.encode() for text in texts])]


def test_what_was_handed_over_ahead_is_predicted_at_once_and_kills_only_itself(
    tmp_path: Path,
) -> None:
    """As when a micro-batch fails and is tried in halves: the next ones are in the process by then."""
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    with process() as predictor:
        for text in (first, second):
            predictor.prepare([text.encode()])
        until((tmp_path / "second").exists)
        assert [said(predictor, text) for text in (second, first)] == [[second], [first]]
        for batch in ([b"raise", b"good"], [b"segfault"], [b"behind"]):
            predictor.prepare(batch)
        with pytest.raises(ItemFault, match="asked to"):
            predictor.predict([b"raise", b"good"])
        assert said(predictor, "good") == ["good"], "not blamed"
        with pytest.raises(ProcessDied, match="SIGSEGV"):
            predictor.predict([b"segfault"])
        assert said(predictor, "behind") == ["behind"]
        # Requests and answers larger than a pipe do not wait for each other.
        batches = [[byte * 300_000] * 10 for byte in (b"a", b"b", b"c")]
        for batch in batches:
            predictor.prepare(batch)
        assert [len(predictor.predict(batch)) for batch in batches] == [10] * 3


def test_a_promised_gpu_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the CPU at the price of a GPU, whatever the predictor computes on."""
    monkeypatch.setenv(ENV_GPUS, "64")
    with pytest.raises(InputError, match="the pod has GPUs configured"), process():
        pass


def test_a_stop_gives_back_what_was_handed_over_ahead(harness: Harness, tmp_path: Path) -> None:
    harness.settings = replace(SETTINGS, micro_batch=4, fill_s=5.0)
    harness.enqueue(bodies(harness.job, *(str(tmp_path / f"{n:02d}") for n in range(40))))
    shutdown = Shutdown()

    def at(step: Failpoint) -> None:
        # the second micro-batch is there already
        if step is Failpoint.PREDICTED and (tmp_path / "07").exists():
            shutdown.request("eviction")

    with process() as predictor:
        assert harness.worker(predictor, shutdown, at).run() == EXIT_PREEMPTED
    states = Counter(status for status, _ in harness.rows().values())
    assert states["done"] in range(4, 40, 4), "whole micro-batches are committed"
    assert len(harness.queue.pull(99, 0.0)) == 40 - states["done"], (
        "other workers get all others at once"
    )
    assert states["held"] == 0


def test_a_hanging_item_is_counted_within_three_bounds_and_other_workers_get_the_rest_meanwhile(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.settings = replace(SETTINGS, micro_batch=16, max_failures=1)
    harness.enqueue(bodies(harness.job, *["good"] * 40, "hang", *["good"] * 60))

    def another_worker() -> int:
        until(lambda: harness.event_lines("released"))
        leases = harness.queue.pull(99, 0.0)
        harness.queue.release(leases)
        return len(leases)

    began = time.monotonic()
    with ThreadPoolExecutor(1) as other, process(timeout_s=BOUND_S) as predictor:
        released = other.submit(another_worker)
        assert harness.worker(predictor).run() == EXIT_COMPLETE
    assert time.monotonic() - began < 3 * BOUND_S, "with all that was done before and after"
    assert released.result() >= 16, "what waited behind the overdue micro-batch"
    assert [item for item, (status, _) in harness.rows().items() if status == "dead"] == ["40 hang"]
    assert harness.event_lines("overdue")[0]["seconds"] <= BOUND_S / 2
    assert "overdue" in capsys.readouterr().out


def test_the_bound_is_learned_and_grows_with_the_failures_of_an_item() -> None:
    timing = BatchTime()
    assert bound_s(timing, 8, 0, most_s=300.0) == 300.0, (
        "nothing is known: a first batch may compile kernels"
    )
    for count in (1, 8):
        timing.observe(count, 0.5 * count)
    assert bound_s(timing, 8, 0, most_s=300.0) == pytest.approx(80.0)
    assert bound_s(timing, 1, 0, most_s=300.0) == 30.0
    assert bound_s(timing, 1, 2, most_s=300.0) == 120.0, (
        "what takes long and does not hang has its chance"
    )
    assert bound_s(timing, 8, 100_000, most_s=300.0) == 300.0
