"""Tests the real Cloud Monitoring client against a server that refuses what the API refuses."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.api_core import exceptions

from holdfast.controllers.sample import Sample, sample
from holdfast.exporter.cloud import CloudWriter
from workloads.library.tests.cost.churn.metric_server import MetricServer
from workloads.library.tests.sample import EPOCH


@dataclass
class Clock:
    now: float = EPOCH

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Generator[MetricServer]:
    server = MetricServer(clock)
    yield server
    server.stop()


@pytest.fixture
def writer(server: MetricServer, clock: Clock) -> CloudWriter:
    return CloudWriter(
        server.start(),
        "acme-ai",
        "us-central1",
        "holdfast-example",
        patience_s=20,
        clock=clock,
    )


def ages(count: int) -> list[Sample]:
    return [sample("last_commit_age_seconds", n, job=f"job-{n}") for n in range(count)]


def test_a_call_sends_at_most_200_series(server: MetricServer, writer: CloudWriter) -> None:
    assert writer.write([*ages(450), *ages(3)]) == 450
    assert server.calls == [200, 200, 50]
    assert writer.refused == 0


@pytest.mark.parametrize(
    ("times", "sent"),
    [((0, 2, 4, 6, 11), [0, 6, 11]), ((100, 40, 90, 120), [100, 120])],
    ids=["points too close together", "a clock that steps back"],
)
def test_a_point_that_the_api_would_refuse_is_not_sent(
    server: MetricServer,
    writer: CloudWriter,
    clock: Clock,
    times: tuple[float, ...],
    sent: list[float],
) -> None:
    for after_s in times:
        clock.now = EPOCH + after_s
        writer.write(ages(1))
    [points] = server.points.values()
    times_s, _ = zip(*points, strict=True)
    assert [t - EPOCH for t in times_s] == pytest.approx(sent)
    assert writer.refused == 0


def test_a_falling_counter_starts_again(
    server: MetricServer, writer: CloudWriter, clock: Clock
) -> None:
    for value in (0, 3, 1, 2):
        clock.now += 15
        assert writer.write([sample("preemptions_total", value, pool="spot-l4", zone="a")]) == 1
    [points] = server.points.values()
    [start] = server.starts.values()
    _, values = zip(*points, strict=True)
    assert values == (0, 3, 1, 2)
    assert start == pytest.approx(EPOCH + 45, abs=0.01)


@pytest.mark.parametrize(
    ("fault", "times", "taken"),
    [
        (grpc.StatusCode.UNAVAILABLE, 2, 201),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 2, 201),
        (grpc.StatusCode.INTERNAL, 2, 201),
        (grpc.StatusCode.PERMISSION_DENIED, 1, 1),
        (grpc.StatusCode.INVALID_ARGUMENT, 1, 1),
    ],
)
def test_transient_errors_are_retried_and_others_counted(
    server: MetricServer,
    writer: CloudWriter,
    clock: Clock,
    fault: grpc.StatusCode,
    times: int,
    taken: int,
) -> None:
    server.faults = [fault] * times
    assert writer.write(ages(201)) == taken
    assert (server.faults, writer.refused) == ([], 201 - taken)
    clock.now += 15
    assert writer.write(ages(201)) == 201


def test_the_test_server_refuses_early_points(
    server: MetricServer, writer: CloudWriter, clock: Clock
) -> None:
    """The tests above would prove nothing if the server took every point."""
    writer.write(ages(1))
    writer._last_s.clear()  # pyright: ignore[reportPrivateUsage]
    clock.now += 1
    assert writer.write(ages(1)) == 0
    assert writer.refused == 1


def test_a_pass_waits_once_for_a_cloud_that_is_away(clock: Clock) -> None:
    """A pass of many calls would outlive the lease."""
    sizes: list[int] = []

    class Away:
        def create_time_series(self, *, time_series: list[Any], **_: Any) -> None:
            sizes.append(len(time_series))
            if len(sizes) > 1:
                raise exceptions.RetryError("10 s are over", exceptions.ServiceUnavailable("away"))

    client: Any = Away()
    writer = CloudWriter(
        client,
        "acme-ai",
        "us-central1",
        "holdfast-example",
        clock=clock,
    )
    assert writer.write(ages(1_000)) == 200
    assert sizes == [200, 200]
    assert writer.refused == 800
