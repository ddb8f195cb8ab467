"""Tests of the drain as a state machine, from the notice to the last response."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.inference import server
from holdfast.inference.server.drain import Drain, Phase
from holdfast.vocabulary.serving import QUIET_S, drain_budget, sidecar_budget


def start_drain(window_s: float = 15.0, request_s: float = 0.0) -> Drain:
    """Makes the drain of a ready server with a notice at time 0."""
    budget = drain_budget(window_s)
    drain = Drain(
        budget=budget,
        longest_request_s=request_s or budget.longest_request_s,
    )
    drain.finish_loading()
    drain.notice(0.0)
    return drain


def answer(drain: Drain, now: float) -> None:
    drain.begin_request()
    drain.record_prediction(now)
    drain.end_request()


def test_a_window_is_divided_completely() -> None:
    for window_s, accept_s, request_s, sidecar_s in ((15, 5, 7, (4, 7)), (105, 15, 87, (15, 80))):
        budget = drain_budget(window_s)
        assert budget.accept_s == accept_s
        assert budget.longest_request_s == request_s
        assert accept_s + request_s == budget.leave_s
        assert sidecar_budget(window_s) == sidecar_s, "for a server that refuses after SIGTERM"


def test_a_server_that_was_never_ready_exits_at_once() -> None:
    drain = Drain(budget=drain_budget(15.0), longest_request_s=1.0)
    drain.notice(0.0)
    assert drain.phase is Phase.GONE


def test_it_accepts_while_endpoints_move_and_until_it_is_quiet() -> None:
    drain = start_drain(request_s=1.0)
    assert drain.leaving
    assert drain.serving
    assert drain.advance(4.9) is Phase.ACCEPTING
    answer(drain, 4.8)
    assert drain.advance(5.1) is Phase.ACCEPTING
    assert drain.advance(4.8 + QUIET_S) is Phase.GONE


def test_endless_requests_do_not_extend_the_window() -> None:
    drain = start_drain(request_s=1.0)
    for tenth in range(109):
        answer(drain, tenth / 10)
        assert drain.advance(tenth / 10) is Phase.ACCEPTING
    drain.begin_request()
    drain.record_prediction(11.0)
    assert drain.advance(11.0) is Phase.FINISHING
    assert not drain.serving
    drain.end_request()
    assert drain.advance(11.1) is Phase.GONE


@settings(max_examples=50)
@given(st.sampled_from([15.0, 105.0]), st.lists(st.floats(0.0, 200.0), max_size=30))
def test_an_accepted_request_has_its_full_time(window_s: float, requests: list[float]) -> None:
    """A request that starts while the server accepts may take the longest time."""
    drain = start_drain(window_s)
    for now in sorted(requests):
        drain.advance(now)
        if drain.serving:
            answer(drain, now)
            assert now + drain.longest_request_s <= drain.budget.leave_s + 1e-6


def test_no_server_module_uses_the_wall_clock() -> None:
    """A change of the wall clock must not move a deadline."""
    wall_clock = re.compile(r"\btime\.time\(|\b(?:utc)?now\(\)|\btoday\(")
    files = list(Path(server.__file__).parent.glob("*.py"))
    assert len(files) > 10
    for file in files:
        assert not wall_clock.search(file.read_text()), file.name
