"""Batch jobs on Pub/Sub with the options that are rendered: each on a lane of its own, side by
side.
"""

import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.manifests import batch
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT
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


def queue_options(lanes: int) -> list[list[str]]:
    """As rendered for the job that loads, the one that drains and the one that runs on."""
    context = RenderContext(describe.platform(with_lanes(lanes)))
    found: list[list[str]] = []
    for build in (batch.load, batch.drain, batch.steady):
        (main,) = build(context)["spec"]["template"]["spec"]["containers"]
        named = zip(main["command"], main["command"][1:], strict=False)
        found.append(
            [word for pair in named if pair[0] in ("--topic", "--subscription") for word in pair]
        )
    return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeBroker]:
    with fake_broker_server.serve(broker := FakeBroker(max_attempts=5)) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield broker


def test_every_lane_is_made_and_granted_and_no_pod_may_make_one() -> None:
    assert queue_options(0) == [[]] * 3, "without lanes jobs queue in the database"
    resources = queue.resources(with_lanes(2))
    made = {r.arguments["name"] for r in resources if r.kind == "google_pubsub_subscription"}
    for *_, subscription in queue_options(2):
        name = subscription.rpartition("/")[2]
        assert name in made
        granted = {
            r.arguments["role"] for r in resources if r.arguments.get("subscription") == name
        }
        assert granted == {"roles/pubsub.subscriber"}
    roles = {r.arguments["role"] for r in resources if "iam" in r.kind}
    assert roles == {"roles/pubsub.subscriber", "roles/pubsub.publisher"}
    assert len({(r.kind, r.id) for r in resources}) == len(resources)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_two_rendered_jobs_run_side_by_side_and_a_third_is_refused(
    server: EmbeddedPostgres, fake: FakeBroker, tmp_path: Path
) -> None:
    rows = [{"id": n, "text": f"text {n}"} for n in range(COUNT)]
    loading, drain, steady = queue_options(2)
    jobs = {batch.DRAIN: drain, batch.STEADY: steady}
    assert loading == drain
    for name, options in jobs.items():
        enqueue(server.uri, name, tmp_path, rows, *options)
    refusal = enqueue(server.uri, "third", tmp_path, rows, *loading, code=EXIT_BAD_INPUT).stderr
    assert "batch-drain" in refusal and "queue.lanes" in refusal
    run = ("--predictor", "entropy", "--events", os.devnull)
    with ThreadPoolExecutor(2) as threads:
        list(
            threads.map(
                lambda job: run_command("run", job[0], *run, *job[1], uri=server.uri), jobs.items()
            )
        )
    assert [status_of(server.uri, name)["done"] for name in jobs] == [COUNT, COUNT]
    assert fake.dead == []
    assert all(fake.left(options[1]) == 0 for options in jobs.values())
    enqueue(server.uri, "third", tmp_path, rows, *loading)  # a drained job leaves its lane
    redrive = ("failures", batch.DRAIN, "--redrive", *loading)
    assert "used by third" in run_command(*redrive, uri=server.uri, code=EXIT_BAD_INPUT).stderr
