"""The pace of a run, and what its interruptions cost."""

from typing import Any

import pytest

from holdfast.ledger.events import Event, parse
from holdfast.ledger.pace import Pace, measure
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, encoded, line

STEP_S = 6.0


def attempt(
    process: str, begin_s: float, first_step: int, last_step: int, **start: Any
) -> list[Line]:
    """An attempt that works a minute after its start, and saves every ten steps."""
    t = begin_s + 60
    lines = [
        line(
            begin_s,
            "start",
            process=process,
            rank=0,
            world_size=1,
            **start,
        ),
        line(
            t,
            "restore",
            process=process,
            step=first_step,
            seconds=2.0,
            skipped=[],
        ),
    ]
    for step in range(first_step + 10, last_step + 1, 10):
        t += 10 * STEP_S
        fields = {
            "first_step": step - 9,
            "last_step": step,
            "seconds": 10 * STEP_S,
        }
        lines.append(line(t, "window", process=process, **fields))
        lines.append(
            line(
                t,
                "commit",
                process=process,
                step=step,
                seconds=1.0,
                bytes=1,
            )
        )
    return lines


def read(*lines: Line) -> list[Event]:
    return parse(encoded(lines)).events


def measure_lines(*lines: Line) -> Pace:
    pace = measure(read(*lines))
    assert pace is not None
    return pace


def test_a_run_names_its_steps_and_its_pace() -> None:
    pace = measure_lines(*attempt("a", EPOCH, 0, 100, attempt=0, steps=500))
    assert pace.step == 100
    assert pace.total_steps == 500
    assert pace.step_h == pytest.approx(STEP_S / 3600)
    assert pace.save_every_h == pytest.approx(60 / 3600)
    assert pace.billed_h == pytest.approx(660 / 3600)
    assert pace.is_whole
    assert pace.down_since_s is None
    assert not pace.interruptions


def test_an_interruption_costs_its_wait_its_restart_and_the_lost_steps() -> None:
    """Killed 30 s after its last line; the node of the next attempt came 5 minutes before it."""
    first = attempt("a", EPOCH, 0, 100, attempt=0)
    killed_s = EPOCH + 690
    evict = line(
        killed_s,
        "evict",
        process="w",
        signal="SIGKILL",
        target="job-0",
    )
    node = line(
        killed_s + 600,
        "scheduled",
        process="w",
        seconds=600,
        capacity="spot",
    )
    second = attempt("b", killed_s + 900, 90, 120, attempt=1)
    pace = measure_lines(*first, evict, node, *second)
    [cost] = pace.interruptions
    assert cost.wait_h == pytest.approx(600 / 3600)
    assert cost.restart_h == pytest.approx(360 / 3600)
    assert cost.lost_h == pytest.approx((10 * STEP_S + 30) / 3600)
    assert pace.closed_lives_h == pytest.approx((630 / 3600,))
    assert pace.open_lives_h == pytest.approx((180 / 3600,))
    assert pace.billed_h == pytest.approx((690 + 300 + 240) / 3600)
    assert pace.capacity == "spot"


def test_an_eviction_is_seen_before_the_next_attempt() -> None:
    evict = line(
        EPOCH + 690,
        "evict",
        process="w",
        signal="SIGKILL",
        target="job-0",
    )
    pace = measure_lines(*attempt("a", EPOCH, 0, 100), evict)
    assert pace.down_since_s == EPOCH + 690


def test_later_lines_alone_are_no_whole_run() -> None:
    assert not measure_lines(*attempt("b", EPOCH, 90, 120, attempt=1)).is_whole


def test_a_log_without_its_beginning_is_no_whole_run() -> None:
    _, *lines = attempt("a", EPOCH, 0, 100, attempt=0)
    assert not measure_lines(*lines).is_whole


def test_nothing_is_said_before_two_windows() -> None:
    assert measure(read(*attempt("a", EPOCH, 0, 10))) is None


def test_a_completed_run_has_no_interruption() -> None:
    pace = measure_lines(*sample.training("job"))
    assert pace.complete
    assert not pace.interruptions
