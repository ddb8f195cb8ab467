"""The queue of a model: no request is lost, none that was accepted is answered late, and nothing is
refused for ever.
"""

import itertools
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.inference.predictor.batch_time import BatchTime
from holdfast.inference.server.batcher import Batcher, Ticket


def knowing(most: int, a: float, b: float) -> Batcher[Ticket]:
    """It has learned that a batch of n takes a + b n seconds."""
    batcher = Batcher[Ticket](batch_items=most)
    for n in (1, most):
        batcher.timing.observe(n, a + b * n)
    return batcher


def ticket(items: int = 1, *, arrived: float = 0.0, deadline: float = 1.0) -> Ticket:
    return Ticket(
        items=items,
        arrived_s=arrived,
        deadline_s=arrived + deadline,
    )


def played(
    batcher: Batcher[Ticket], requests: Iterable[Ticket], takes_s: Callable[[int], float]
) -> tuple[list[Ticket], list[tuple[Ticket, float]], list[Ticket]]:
    """On a device whose batches take so long: the requests that were accepted, answered (when), and
    dropped late.
    """
    accepted = list[Ticket]()
    answered = list[tuple[Ticket, float]]()
    late = list[Ticket]()
    now = 0.0  # of the device

    def compute() -> None:
        nonlocal now
        late.extend(batcher.late(now))
        batch = batcher.take(now)
        items = sum(t.items for t in batch)
        assert items <= batcher.batch_items
        batcher.begin(batch, now)
        took_s = takes_s(items) if batch else 0.0
        now += took_s
        batcher.end()
        if batch:
            batcher.timing.observe(items, took_s)
        answered.extend((t, now) for t in batch)

    for request in requests:
        while batcher.waiting and now < request.arrived_s:
            compute()
        now = max(now, request.arrived_s) if not batcher.waiting else now
        # The device may be busy beyond this arrival: its clock has run ahead.
        batcher.free_at_s = now
        batcher.running = int(now > request.arrived_s)
        if batcher.refusal(request, request.arrived_s) is None:
            batcher.add(request)
            accepted.append(request)
        batcher.running = 0
    while batcher.waiting:
        compute()
    return accepted, answered, late


# After the one before; its items; the time that its client gives it.
arrival = st.tuples(st.floats(0.0, 0.2), st.integers(1, 8), st.floats(0.02, 1.0))


@settings(max_examples=50)
@given(
    st.lists(arrival, min_size=1, max_size=40),
    st.floats(0.001, 0.05),
    st.floats(0.0001, 0.01),
    st.integers(8, 32),
)
def test_every_request_leaves_once_and_an_accepted_one_is_answered_in_time(
    stream: list[tuple[float, int, float]],
    a: float,
    b: float,
    most: int,
) -> None:
    """The batch time is known, as after a minute of work."""
    times = itertools.accumulate(gap for gap, _, _ in stream)
    requests = []
    for at, (_, n, s) in zip(times, stream, strict=True):
        requests.append(ticket(n, arrived=at, deadline=s))
    accepted, answered, late = played(knowing(most, a, b), requests, lambda items: a + b * items)
    assert sorted(map(id, accepted)) == sorted([id(t) for t, _ in answered] + [id(t) for t in late])
    one_batch = a + b * most
    assert all(end <= t.deadline_s + one_batch + 1e-9 for t, end in answered)
    assert [t for t, _ in answered] == [t for t in accepted if t not in late]  # in order of arrival


def test_one_slow_batch_does_not_close_the_server_for_ever() -> None:
    batcher = Batcher[Ticket]()
    batcher.timing.observe(1, 60.0)  # a first batch that compiled kernels
    request = ticket(deadline=1.0)
    assert batcher.refusal(request, 0.0) is None
    batcher.add(request)
    assert not batcher.late(0.0)
    assert batcher.take(0.0) == [request]
    batcher.begin([request], 0.0)
    assert batcher.refusal(ticket(deadline=1.0), 0.1) is not None


def test_a_request_that_would_be_late_is_refused_with_the_time_to_come_back() -> None:
    batcher = knowing(10, 0.0, 0.1)
    for _ in range(30):
        batcher.add(ticket(deadline=100.0))
    refused = batcher.refusal(ticket(deadline=2.0), 0.0)
    assert refused is not None and refused[0] == "deadline"
    # three batches of a second, its own 0.1, a fifth more, less the two given
    assert 1.5 < refused[1] < 1.8
    assert batcher.refusal(ticket(deadline=5.0), 0.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_at_three_times_the_load_the_device_still_does_nine_tenths_of_what_it_can(
    seed: int,
) -> None:
    """Every client gives it two seconds; a full batch takes 0.8 s, give or take a fifth."""
    capacity = 32 / 0.832
    seconds = 100.0
    noise = random.Random(seed)
    requests = (
        ticket(arrived=n / (3 * capacity), deadline=2.0) for n in range(int(3 * capacity * seconds))
    )
    takes_s = lambda items: (0.32 + 0.016 * items) * noise.uniform(0.8, 1.2)  # noqa: E731
    _, answered, _ = played(knowing(32, 0.32, 0.016), requests, takes_s)
    assert sum(end <= request.deadline_s for request, end in answered) >= 0.9 * capacity * seconds


def test_noise_of_small_batches_does_not_keep_batches_small() -> None:
    """A steep line through one and two items would refuse the third, and never see that it costs
    nothing more.
    """
    batcher = Batcher[Ticket](batch_items=32)
    for items, seconds in ((1, 0.08), (2, 0.18), (1, 0.07), (2, 0.17)):
        batcher.timing.observe(items, seconds)
    batcher.begin([ticket()], 0.0)
    for _ in range(32):
        request = ticket(deadline=1.0)
        assert batcher.refusal(request, 0.0) is None
        batcher.add(request)
    batcher.end()
    assert len(batcher.take(0.2)) == 32


def test_the_queue_is_bounded_and_a_client_that_is_gone_leaves_it() -> None:
    batcher = Batcher[Ticket](queue_requests=1)
    gone = ticket(deadline=9.0)
    batcher.add(gone)
    refused = batcher.refusal(ticket(deadline=9.0), 0.0)
    assert refused is not None and refused[0] == "queue"
    assert batcher.discard(gone)
    assert not batcher.discard(gone)
    assert batcher.refusal(ticket(deadline=9.0), 0.0) is None


def test_a_batch_stops_before_it_makes_its_most_urgent_request_late() -> None:
    batcher = knowing(32, 0.0, 0.01)
    batcher.add(ticket(deadline=0.05))
    for _ in range(20):
        batcher.add(ticket(deadline=5.0))
    assert len(batcher.take(0.0)) == 5


def test_the_fit_finds_the_line_and_forgets_the_old_one() -> None:
    timing = BatchTime()
    for n in range(1, 11):
        timing.observe(n, 1.0 + n)
    for n in range(1, 51):
        timing.observe(n, 0.01 + 0.0005 * n)
    assert abs(timing.seconds(8) - 0.014) < 1e-9
