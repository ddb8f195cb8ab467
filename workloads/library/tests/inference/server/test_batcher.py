"""Tests of the request queue: it loses no request, answers in time, and refuses none for ever."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.inference.predictor.batch_time import BatchTime
from holdfast.inference.server.batcher import Batcher, Ticket


def make_batcher(batch_items: int, a: float, b: float) -> Batcher[Ticket]:
    """Makes a batcher that has learned that a batch of n takes a + b n seconds."""
    batcher = Batcher[Ticket](batch_items=batch_items)
    for n in (1, batch_items):
        batcher.timing.observe(n, a + b * n)
    return batcher


def ticket(items: int = 1, *, arrived: float = 0.0, deadline: float = 1.0) -> Ticket:
    return Ticket(
        items=items,
        arrived_s=arrived,
        deadline_s=arrived + deadline,
    )


@dataclass
class Simulation:
    """A device whose batch of n items takes `batch_s(n)`."""

    batcher: Batcher[Ticket]
    batch_s: Callable[[int], float]
    accepted: list[Ticket] = field(default_factory=list[Ticket])
    answered: list[tuple[Ticket, float]] = field(default_factory=list[tuple[Ticket, float]])
    """Requests with the times of their responses."""
    late: list[Ticket] = field(default_factory=list[Ticket])
    now: float = 0.0

    def run(self, requests: Iterable[Ticket]) -> None:
        for request in requests:
            self._arrive(request)
        while self.batcher.waiting:
            self._compute()

    def _arrive(self, request: Ticket) -> None:
        while self.batcher.waiting and self.now < request.arrived_s:
            self._compute()
        if not self.batcher.waiting:
            self.now = max(self.now, request.arrived_s)
        # The device may be busy beyond this arrival: its clock is ahead.
        self.batcher.free_at_s = self.now
        self.batcher.running = int(self.now > request.arrived_s)
        if self.batcher.refusal(request, request.arrived_s) is None:
            self.batcher.add(request)
            self.accepted.append(request)
        self.batcher.running = 0

    def _compute(self) -> None:
        self.late.extend(self.batcher.pop_late(self.now))
        batch = self.batcher.take(self.now)
        if not batch:
            return
        items = sum(ticket.items for ticket in batch)
        assert items <= self.batcher.batch_items
        self.batcher.begin(batch, self.now)
        seconds = self.batch_s(items)
        self.now += seconds
        self.batcher.end()
        self.batcher.timing.observe(items, seconds)
        for ticket in batch:
            self.answered.append((ticket, self.now))


# The time since the previous arrival, the items, and the client's timeout.
arrival = st.tuples(
    st.floats(0.0, 0.2),
    st.integers(1, 8),
    st.floats(0.02, 1.0),
)


@settings(max_examples=50)
@given(
    st.lists(arrival, min_size=1, max_size=40),
    st.floats(0.001, 0.05),
    st.floats(0.0001, 0.01),
    st.integers(8, 32),
)
def test_requests_leave_once_and_accepted_ones_are_answered_in_time(
    stream: list[tuple[float, int, float]],
    a: float,
    b: float,
    batch_items: int,
) -> None:
    """The time of a batch is learned, as after a minute of work."""
    requests: list[Ticket] = []
    arrived_s = 0.0
    for gap_s, items, timeout_s in stream:
        arrived_s += gap_s
        requests.append(ticket(items, arrived=arrived_s, deadline=timeout_s))
    simulation = Simulation(make_batcher(batch_items, a, b), lambda items: a + b * items)
    simulation.run(requests)
    # Tickets are equal only if they are the same, so these comparisons are of requests.
    full_batch_s = a + b * batch_items
    answered: list[Ticket] = []
    for request, end_s in simulation.answered:
        assert end_s <= request.deadline_s + full_batch_s + 1e-9
        answered.append(request)
    in_order = [request for request in simulation.accepted if request not in simulation.late]
    assert answered == in_order
    assert len(answered) + len(simulation.late) == len(simulation.accepted)


def test_one_slow_batch_does_not_close_the_server_for_ever() -> None:
    batcher = Batcher[Ticket]()
    batcher.timing.observe(1, 60.0)  # a first batch that compiled kernels
    request = ticket(deadline=1.0)
    assert batcher.refusal(request, 0.0) is None
    batcher.add(request)
    assert not batcher.pop_late(0.0)
    assert batcher.take(0.0) == [request]
    batcher.begin([request], 0.0)
    assert batcher.refusal(ticket(deadline=1.0), 0.1) is not None


def test_a_request_that_would_be_late_is_refused_with_a_retry_time() -> None:
    batcher = make_batcher(10, 0.0, 0.1)
    for _ in range(30):
        batcher.add(ticket(deadline=100.0))
    refusal = batcher.refusal(ticket(deadline=2.0), 0.0)
    assert refusal is not None
    reason, retry_s = refusal
    assert reason == "deadline"
    # Three batches of a second and its own 0.1 s, with a margin of a fifth, less its 2 s.
    assert 1.5 < retry_s < 1.8
    assert batcher.refusal(ticket(deadline=5.0), 0.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_device_at_three_times_its_capacity_still_does_nine_tenths(seed: int) -> None:
    """Every client waits two seconds; a full batch takes 0.8 s, plus or minus a fifth."""
    capacity = 32 / 0.832
    seconds = 100.0
    noise = random.Random(seed)
    rate = 3 * capacity
    count = int(rate * seconds)
    requests = [ticket(arrived=n / rate, deadline=2.0) for n in range(count)]

    def batch_s(items: int) -> float:
        return (0.32 + 0.016 * items) * noise.uniform(0.8, 1.2)

    simulation = Simulation(make_batcher(32, 0.32, 0.016), batch_s)
    simulation.run(requests)
    in_time = sum(end_s <= request.deadline_s for request, end_s in simulation.answered)
    assert in_time >= 0.9 * capacity * seconds


def test_noise_in_small_batches_does_not_keep_batches_small() -> None:
    """A steep line through one and two items would refuse the third, and never be corrected."""
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


def test_the_queue_is_bounded_and_a_disconnected_client_leaves_it() -> None:
    batcher = Batcher[Ticket](queue_requests=1)
    discarded = ticket(deadline=9.0)
    batcher.add(discarded)
    refusal = batcher.refusal(ticket(deadline=9.0), 0.0)
    assert refusal is not None
    assert refusal[0] == "queue"
    assert batcher.discard(discarded)
    assert not batcher.discard(discarded)
    assert batcher.refusal(ticket(deadline=9.0), 0.0) is None


def test_a_batch_stops_before_it_makes_its_most_urgent_request_late() -> None:
    batcher = make_batcher(32, 0.0, 0.01)
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
