"""The drain as a state machine: not ready at once, accepting until endpoints have moved, gone when all is answered."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contract.serving import QUIET_S, drain_budget, sidecar_budget
from holdfast.inference import server
from holdfast.inference.server.drain import Drain, Phase


def drain(window_s: float = 15.0, request_s: float | None = None) -> Drain:
    budget = drain_budget(window_s)
    return Drain(budget=budget, longest_request_s=budget.longest_request_s if request_s is None else request_s)


@pytest.mark.parametrize(("window_s", "ours", "sidecars"), [(15, (5, 7), (4, 7)), (105, (15, 87), (15, 80))])
def test_a_window_is_shared_out_whole(
    window_s: float, ours: tuple[float, float], sidecars: tuple[float, float]
) -> None:
    budget = drain_budget(window_s)
    assert (budget.accept_s, budget.longest_request_s) == ours
    assert sum(ours) == budget.leave_s
    assert sidecar_budget(window_s) == sidecars, "of a server that refuses after SIGTERM"


def test_a_server_that_was_never_ready_leaves_at_once() -> None:
    server = drain()
    server.notice(0.0)
    assert server.phase is Phase.GONE


def test_it_goes_on_accepting_while_endpoints_move_and_then_until_it_is_quiet() -> None:
    server = drain(request_s=1.0)
    server.loaded()
    server.notice(100.0)
    assert server.leaving
    assert server.serving
    assert server.advance(104.9) is Phase.ACCEPTING
    server.began()
    server.predicting(104.8)
    server.ended()
    assert server.advance(105.1) is Phase.ACCEPTING
    assert server.advance(104.8 + QUIET_S) is Phase.GONE


def test_requests_that_never_stop_coming_do_not_hold_it_beyond_its_window() -> None:
    server = drain(request_s=1.0)
    server.loaded()
    server.notice(0.0)
    for tenth in range(109):
        server.began()
        server.predicting(tenth / 10)
        server.ended()
        assert server.advance(tenth / 10) is Phase.ACCEPTING
    server.began()
    server.predicting(11.0)
    assert server.advance(11.0) is Phase.FINISHING
    assert not server.serving
    server.ended()
    assert server.advance(11.1) is Phase.GONE


@settings(max_examples=50)
@given(
    st.sampled_from([15.0, 105.0]),
    st.lists(st.floats(0.0, 200.0), max_size=30),
)
def test_whoever_is_accepted_has_the_time_that_was_promised(window_s: float, requests: list[float]) -> None:
    """Every request that begins while it accepts can take the longest time and still end before the process must."""
    server = drain(window_s)
    server.loaded()
    server.notice(0.0)
    for at in sorted(requests):
        server.advance(at)
        if server.serving:
            server.began()
            server.predicting(at)
            assert at + server.longest_request_s <= server.budget.leave_s + 1e-6
            server.ended()


def test_a_step_of_the_wall_clock_moves_no_deadline() -> None:
    """Nothing in the whole room reads it."""
    asked = re.compile(r"\btime\.time\(|\b(?:utc)?now\(\)|\btoday\(")
    files = sorted(Path(server.__file__).parent.glob("*.py"))
    found = {file.name: asked.findall(file.read_text()) for file in files}
    assert len(found) > 10 and not any(found.values())
