"""Batch jobs on Pub/Sub with the options that are rendered: each on a lane of its own, side by side."""

import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contract.exit_codes import EXIT_BAD_INPUT
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.manifests import batch
from holdfast.manifests.render_context import Body, RenderContext
from infra import describe
from infra.environments import Environment, load
from infra.specs import queue
from workloads.library.tests.inference import fake_broker_server
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.test_commands import enqueue, run_command, status_of

COUNT = 200


def with_lanes(lanes: int) -> Environment:
    env = load("example")
    return replace(env, queue=replace(env.queue, lanes=lanes))


def rendered(lanes: int) -> RenderContext:
    return RenderContext(describe.platform(with_lanes(lanes)))


def command(body: Body) -> list[str]:
    (main,) = body["spec"]["template"]["spec"]["containers"]
    return main["command"]


def queue_options(words: list[str]) -> list[str]:
    names = ("--topic", "--subscription")
    return [word for name in names if name in words for word in (name, words[words.index(name) + 1])]


@pytest.fixture
def broker() -> Generator[tuple[FakeBroker, str]]:
    made = FakeBroker(max_attempts=5)
    with fake_broker_server.serve(made) as address:
        yield made, address


def test_without_lanes_jobs_queue_in_the_database() -> None:
    for build in (batch.load, batch.drain, batch.steady):
        assert queue_options(command(build(rendered(0)))) == []


def test_every_lane_is_made_and_granted_and_no_pod_may_make_one() -> None:
    context = rendered(2)
    resources = queue.resources(with_lanes(2))
    made = {r.arguments["name"] for r in resources if r.kind == "google_pubsub_subscription"}
    for build in (batch.load, batch.drain, batch.steady):
        words = command(build(context))
        name = words[words.index("--subscription") + 1].rpartition("/")[2]
        assert name in made
        granted = {r.arguments["role"] for r in resources if r.arguments.get("subscription") == name}
        assert granted == {"roles/pubsub.subscriber"}
    assert {r.arguments["role"] for r in resources if "iam" in r.kind} == {
        "roles/pubsub.subscriber",
        "roles/pubsub.publisher",
    }
    assert len({(r.kind, r.id) for r in resources}) == len(resources)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_two_rendered_jobs_run_side_by_side_and_a_third_is_refused(
    server: EmbeddedPostgres, broker: tuple[FakeBroker, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, address = broker
    context = rendered(2)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
    rows = [{"id": n, "text": f"text {n}"} for n in range(COUNT)]
    loading = queue_options(command(batch.load(context)))
    jobs = {name: queue_options(command(build(context))) for name, build in
            ((batch.DRAIN, batch.drain), (batch.STEADY, batch.steady))}  # fmt: skip
    assert loading == jobs[batch.DRAIN]
    for name, options in jobs.items():
        enqueue(server.uri, name, tmp_path, rows, *options)
    refusal = enqueue(server.uri, "third", tmp_path, rows, *loading, code=EXIT_BAD_INPUT).stderr
    assert "batch-drain" in refusal and "queue.lanes" in refusal
    run = ("--predictor", "entropy", "--events", os.devnull)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda job: run_command("run", job[0], *run, *job[1], uri=server.uri), jobs.items()))
    assert [status_of(server.uri, name)["done"] for name in jobs] == [COUNT, COUNT]
    assert fake.dead == []
    assert all(fake.left(options[1]) == 0 for options in jobs.values())
    enqueue(server.uri, "third", tmp_path, rows, *loading)  # a drained job leaves its lane
    redrive = ("failures", batch.DRAIN, "--redrive", *loading)
    assert "used by third" in run_command(*redrive, uri=server.uri, code=EXIT_BAD_INPUT).stderr
