"""The pace of a batch job, and what the losses of its workers cost."""

import pytest

from holdfast.ledger.batch_pace import measure_batch
from holdfast.ledger.events import Event, parse
from holdfast.ledger.processes import ProcessRun
from workloads.library.tests.sample import EPOCH, Line, encoded, line

TOTAL = 10_000


def write_worker(pod: str, begin_s: float, batches: int, backlog: int) -> list[Line]:
    """A worker that starts in a minute, and stores 20 items every 40 s."""
    process = f"{pod}-7-abc"

    def write_line(t: float, event: str, **fields: object) -> Line:
        return line(
            t,
            event,
            kind="batch",
            process=process,
            **fields,
        )

    lines = [
        line(
            begin_s - 30,
            "scheduled",
            kind="batch",
            process=pod,
            seconds=5.0,
            capacity="spot",
            accelerator="nvidia-l4",
        ),
        write_line(begin_s, "start", rank=0, world_size=1, attempt=0, steps=TOTAL, items=backlog),
    ]
    for number in range(batches):
        t = begin_s + 60 + 40 * number
        lines.append(write_line(t, "claimed", items=20))
        lines.append(write_line(t + 40, "stored", items=20, seconds=0.1))
    return lines


def evict(pod: str, t: float) -> Line:
    return line(
        t,
        "evict",
        kind="batch",
        process=pod,
        signal="SIGTERM",
        target=pod,
    )


def read(*lines: Line) -> list[Event]:
    events = parse(encoded(lines)).events
    return sorted(events, key=lambda event: event.t_us)


def test_two_workers_share_the_items() -> None:
    a = write_worker("pod-a", EPOCH, 10, TOTAL)
    b = write_worker("pod-b", EPOCH + 10, 10, TOTAL)
    pace = measure_batch(read(*a, *b), workers=2)
    assert pace is not None
    assert pace.total_steps == TOTAL
    assert pace.step == 400
    # Two seconds an item and worker.
    assert pace.step_h == pytest.approx(1 / 3600)
    assert len(pace.open_lives_h) == 2
    assert pace.interruptions == ()
    assert pace.is_whole
    assert pace.capacity == "spot"


def test_a_lost_worker_costs_its_wait_its_start_and_its_items() -> None:
    a = write_worker("pod-a", EPOCH, 10, TOTAL)
    claim = line(
        EPOCH + 470,
        "claimed",
        kind="batch",
        process="pod-a-7-abc",
        items=20,
    )
    loss = evict("pod-a", EPOCH + 480)
    c = write_worker("pod-c", EPOCH + 1_080, 5, TOTAL - 200)
    pace = measure_batch(read(*a, claim, loss, *c), workers=1)
    assert pace is not None
    [interruption] = pace.interruptions
    assert interruption.wait_h == pytest.approx(570 / 3600)
    assert interruption.restart_h == pytest.approx(90 / 3600)
    assert interruption.lost_h == pytest.approx(40 / 3600)
    assert pace.step == 300
    assert len(pace.closed_lives_h) == 1
    assert len(pace.open_lives_h) == 1


def test_workers_that_were_not_read_store_as_much() -> None:
    a = write_worker("pod-a", EPOCH, 10, TOTAL)
    pace = measure_batch(read(*a), workers=4, share=0.25)
    assert pace is not None
    assert pace.step == 800
    assert not pace.is_whole


def test_silent_workers_beyond_the_limit_were_lost() -> None:
    a = write_worker("pod-a", EPOCH, 3, TOTAL)
    b = write_worker("pod-b", EPOCH + 3_600, 3, TOTAL - 60)
    pace = measure_batch(read(*a, *b), workers=1)
    assert pace is not None
    assert len(pace.closed_lives_h) == 1
    assert len(pace.open_lives_h) == 1


def test_lines_without_items_have_no_pace() -> None:
    lines = write_worker("pod-a", EPOCH, 5, TOTAL)
    del lines[1]["steps"]
    assert measure_batch(read(*lines), workers=1) is None


def test_cost_follows_the_workers_and_not_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of weeks on Spot has thousands of workers, and most of them are evicted."""
    lines: list[Line] = []
    for number in range(20):
        pod = f"pod-{number}"
        begin_s = EPOCH + 1_000 * number
        lines += write_worker(
            pod,
            begin_s,
            4,
            TOTAL,
        )
        lines.append(evict(pod, begin_s + 500))
    comparisons: list[object] = []

    def compare(run: ProcessRun, other: object) -> bool:
        comparisons.append(other)
        return run is other

    monkeypatch.setattr(ProcessRun, "__eq__", compare)
    pace = measure_batch(read(*lines), workers=1)
    assert pace is not None
    assert len(pace.closed_lives_h) == 20
    assert not comparisons
