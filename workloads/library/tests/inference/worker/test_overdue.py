"""Items that hang: said at once, counted soon, and no neighbour held for them."""

import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.items import Item
from holdfast.inference.predictor.batch_time import BatchTime
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.worker.batch_worker import EXIT_DEVICE_LOST
from holdfast.inference.worker.triage import bound_s
from workloads.library.tests.inference.harness import QUICK, Harness

pytestmark = pytest.mark.process
FAULTY = PredictorSpec(name="workloads.library.tests.inference.faulty_predictors:faulty")
BOUND_S = 6.0


def items(job: str, *wanted: str) -> list[Item]:
    return [Item(job=job, id=f"{n:03d}", body=body.encode()) for n, body in enumerate(wanted)]


def run(harness: Harness, bound: float) -> int:
    with closing(ProcessPredictor(FAULTY, timeout_s=bound)) as predictor:
        predictor.load()
        return harness.worker(predictor).run()


def test_a_hanging_item_is_counted_within_three_bounds_and_others_can_be_had_meanwhile(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.settings = replace(QUICK, micro_batch=16, max_failures=1, settle_s=0.05)
    harness.enqueue(items(harness.job, *["good"] * 40, "hang", *["good"] * 60))
    elsewhere: list[int] = []

    def another_worker() -> None:
        while not harness.event_lines("released"):
            time.sleep(0.01)
        leases = harness.queue.pull(99, 0.0)
        elsewhere.append(len(leases))
        harness.queue.release(leases)

    other = threading.Thread(target=another_worker, daemon=True)
    other.start()
    began = time.monotonic()
    assert run(harness, BOUND_S) == EXIT_COMPLETE
    assert time.monotonic() - began < 3 * BOUND_S, "with all that was done before and after"
    other.join(10)
    assert elsewhere and elsewhere[0] >= 16, "what waited behind the overdue micro-batch"
    assert {item for item, (status, _) in harness.rows().items() if status == "dead"} == {"040"}
    assert harness.event_lines("overdue")[0]["seconds"] <= BOUND_S / 2
    assert "overdue" in capsys.readouterr().out


def test_a_device_that_hangs_with_everything_counts_against_no_item(harness: Harness) -> None:
    harness.settings = replace(QUICK, micro_batch=8, settle_s=0.05)
    harness.enqueue(items(harness.job, *["hang"] * 8))
    assert run(harness, 1.0) == EXIT_DEVICE_LOST
    assert not harness.event_lines("item_failed")


def test_the_bound_is_learned_and_grows_with_the_failures_of_an_item() -> None:
    timing = BatchTime()
    assert bound_s(timing, 8, 0, most_s=300.0) == 300.0, "nothing is known: a first batch may compile kernels"
    for count in (1, 8):
        timing.observe(count, 0.5 * count)
    assert bound_s(timing, 8, 0, most_s=300.0) == pytest.approx(80.0)
    assert bound_s(timing, 1, 0, most_s=300.0) == 30.0
    assert bound_s(timing, 1, 2, most_s=300.0) == 120.0, "what takes long and does not hang has its chance"
    assert bound_s(timing, 8, 100_000, most_s=300.0) == 300.0
