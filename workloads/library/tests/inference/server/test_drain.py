"""The drain as a state machine: not ready at once, accepting until endpoints have moved, gone when
all is answered.
"""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.inference import server
from holdfast.inference.server.drain import Drain, Phase
from holdfast.vocabulary.serving import QUIET_S, drain_budget, sidecar_budget


def noticed(window_s: float = 15.0, request_s: float = 0.0) -> Drain:
    """A server that was ready when it got its notice, at 0."""
    budget = drain_budget(window_s)
    drain = Drain(budget=budget, longest_request_s=request_s or budget.longest_request_s)
    drain.loaded()
    drain.notice(0.0)
    return drain


def answer(drain: Drain, at: float) -> None:
    drain.began()
    drain.predicting(at)
    drain.ended()


def test_a_window_is_shared_out_whole() -> None:
    for window_s, ours, sidecars in ((15, (5, 7), (4, 7)), (105, (15, 87), (15, 80))):
        budget = drain_budget(window_s)
        assert (budget.accept_s, budget.longest_request_s) == ours
        assert sum(ours) == budget.leave_s
        assert sidecar_budget(window_s) == sidecars, "of a server that refuses after SIGTERM"


def test_a_server_that_was_never_ready_leaves_at_once() -> None:
    drain = Drain(budget=drain_budget(15.0), longest_request_s=1.0)
    drain.notice(0.0)
    assert drain.phase is Phase.GONE


def test_it_goes_on_accepting_while_endpoints_move_and_then_until_it_is_quiet() -> None:
    drain = noticed(request_s=1.0)
    assert drain.leaving and drain.serving
    assert drain.advance(4.9) is Phase.ACCEPTING
    answer(drain, 4.8)
    assert drain.advance(5.1) is Phase.ACCEPTING
    assert drain.advance(4.8 + QUIET_S) is Phase.GONE


def test_requests_that_never_stop_coming_do_not_hold_it_beyond_its_window() -> None:
    drain = noticed(request_s=1.0)
    for tenth in range(109):
        answer(drain, tenth / 10)
        assert drain.advance(tenth / 10) is Phase.ACCEPTING
    drain.began()
    drain.predicting(11.0)
    assert drain.advance(11.0) is Phase.FINISHING
    assert not drain.serving
    drain.ended()
    assert drain.advance(11.1) is Phase.GONE


@settings(max_examples=50)
@given(st.sampled_from([15.0, 105.0]), st.lists(st.floats(0.0, 200.0), max_size=30))
def test_an_accepted_request_has_the_time_that_was_promised(
    window_s: float, requests: list[float]
) -> None:
    """Every request that begins while it accepts can take the longest time and still end before the
    process must.
    """
    drain = noticed(window_s)
    for at in sorted(requests):
        drain.advance(at)
        if drain.serving:
            answer(drain, at)
            assert at + drain.longest_request_s <= drain.budget.leave_s + 1e-6


def test_a_step_of_the_wall_clock_moves_no_deadline() -> None:
    """No module of the room reads it."""
    read = re.compile(r"\btime\.time\(|\b(?:utc)?now\(\)|\btoday\(")
    found = [read.findall(file.read_text()) for file in Path(server.__file__).parent.glob("*.py")]
    assert len(found) > 10 and not any(found)
