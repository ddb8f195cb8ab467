"""The goodput stack: its buckets hold exactly the time of the ledgers, on the edges of the clock."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ledger.account import JobLedger, totals_us
from holdfast.ledger.timeline import STATES, Span, State
from holdfast.report.goodput import LENGTHS_S, MOST_BUCKETS, SECOND_US, buckets, length_us

HOUR_US = 3_600_000_000
NOON_US = 1_795_262_400 * SECOND_US


def made(*spans: tuple[int, State], begin_us: int = NOON_US) -> JobLedger:
    """A ledger of one lane, from lengths."""
    found_buckets: list[Span] = []
    at = begin_us
    for length, state in spans:
        found_buckets.append(Span(at, at + length, state))
        at += length
    return JobLedger(
        job="job", index=None, kind="training", begin_us=begin_us, end_us=at, lanes=1, totals_us=totals_us(found_buckets),
        drawn=lambda: found_buckets, recoveries=(), lost=0, points=lambda: (),
    )  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 40 * HOUR_US), st.sampled_from(STATES)), min_size=1, max_size=12))
def test_over_all_buckets_each_state_adds_up_to_the_ledger(spans: list[tuple[int, State]]) -> None:
    found = made(*spans)
    found_buckets = buckets([found, found])
    sums: Counter[State] = Counter()
    for bucket in found_buckets:
        sums.update(bucket.states_us)
        assert bucket.begin_us % bucket.length_us == 0
        assert 0 < bucket.wall_us <= 2 * bucket.length_us
    assert {state: sums[state] for state in STATES} == {s: 2 * us for s, us in found.totals_us.items()}
    assert len(found_buckets) <= MOST_BUCKETS


@settings(max_examples=60)
@given(st.integers(0, 10 * HOUR_US), st.integers(1, 50 * 24 * HOUR_US))
def test_the_buckets_are_the_shortest_that_are_few_enough(offset: int, wall: int) -> None:
    begin, end = NOON_US + offset, NOON_US + offset + wall
    chosen = length_us(begin, end)
    shorter = [s * SECOND_US for s in LENGTHS_S if s * SECOND_US < chosen]
    assert (end - 1) // chosen - begin // chosen < MOST_BUCKETS
    assert all((end - 1) // s - begin // s >= MOST_BUCKETS for s in shorter)


def test_two_days_are_shown_by_hour_and_a_bad_hour_stands_out() -> None:
    found = made((30 * HOUR_US, State.PRODUCTIVE), (HOUR_US, State.WAITING), (17 * HOUR_US, State.PRODUCTIVE))
    found_buckets = buckets([found])
    assert {bucket.length_us for bucket in found_buckets} == {HOUR_US}
    assert [b.begin for b in found_buckets if b.goodput < 1] == ["2026-11-22T18:00Z"]


def test_a_stretch_in_which_nothing_ran_is_left_out() -> None:
    early, late = made((HOUR_US, State.PRODUCTIVE)), made((HOUR_US, State.LOST), begin_us=NOON_US + 9 * HOUR_US)
    hours = {b.begin_us // HOUR_US - NOON_US // HOUR_US for b in buckets([early, late])}
    assert hours == {0, 9}


def test_no_job_has_no_stack() -> None:
    assert buckets([]) == ()
