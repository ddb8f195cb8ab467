"""Tests of batch jobs on Pub/Sub with their rendered options: each has a lane of its own."""

import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
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
from workloads.library.tests.inference.test_commands import enqueue, query_status, run_command

COUNT = 200


def load_environment(lanes: int) -> Environment:
    env = load("example")
    return replace(env, queue=replace(env.queue, lanes=lanes))


def queue_options(lanes: int) -> list[list[str]]:
    """Returns the rendered options of the jobs that load, drain and run without end."""
    context = RenderContext(describe.platform(load_environment(lanes)))
    options: list[list[str]] = []
    for build in (batch.load, batch.drain, batch.steady):
        (container,) = build(context)["spec"]["template"]["spec"]["containers"]
        options.append(extract_options(container["command"]))
    return options


def extract_options(command: list[str]) -> list[str]:
    """Returns --topic and --subscription with their values."""
    options: list[str] = []
    for option, value in pairwise(command):
        if option in ("--topic", "--subscription"):
            options += [option, value]
    return options


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeBroker]:
    broker = FakeBroker(max_attempts=5)
    with fake_broker_server.serve(broker) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield broker


def test_every_lane_is_created_and_granted_and_no_pod_may_create_one() -> None:
    assert queue_options(0) == [[]] * 3, "without lanes jobs queue in the database"
    resources = queue.resources(load_environment(2))
    subscriptions: set[object] = set()
    roles_by_subscription: dict[object, set[object]] = {}
    for resource in resources:
        arguments = resource.arguments
        if resource.kind == "google_pubsub_subscription":
            subscriptions.add(arguments["name"])
        elif "subscription" in arguments:
            roles = roles_by_subscription.setdefault(arguments["subscription"], set())
            roles.add(arguments["role"])
    for *_, subscription in queue_options(2):
        name = subscription.rpartition("/")[2]
        assert name in subscriptions
        assert roles_by_subscription[name] == {"roles/pubsub.subscriber"}
    roles = set()
    for resource in resources:
        if "iam" in resource.kind:
            roles.add(resource.arguments["role"])
    assert roles == {"roles/pubsub.subscriber", "roles/pubsub.publisher"}
    assert len({(resource.kind, resource.id) for resource in resources}) == len(resources)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_two_rendered_jobs_run_at_once_and_a_third_is_rejected(
    server: EmbeddedPostgres, fake: FakeBroker, tmp_path: Path
) -> None:
    rows = []
    for n in range(COUNT):
        rows.append({"id": n, "text": f"text {n}"})
    loading, drain, steady = queue_options(2)
    jobs = {batch.DRAIN: drain, batch.STEADY: steady}
    assert loading == drain
    for name, options in jobs.items():
        enqueue(
            server.uri,
            name,
            tmp_path,
            rows,
            *options,
        )
    refusal = enqueue(server.uri, "third", tmp_path, rows, *loading, code=EXIT_BAD_INPUT).stderr
    assert "batch-drain" in refusal
    assert "queue.lanes" in refusal

    def run(job: tuple[str, list[str]]) -> None:
        name, options = job
        common = ("--predictor", "entropy", "--events-file", os.devnull)
        run_command(
            "run",
            name,
            *common,
            *options,
            uri=server.uri,
        )

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, jobs.items()))
    for name, options in jobs.items():
        assert query_status(server.uri, name)["done"] == COUNT
        assert fake.count_unacked(options[1]) == 0
    assert fake.dead == []
    enqueue(server.uri, "third", tmp_path, rows, *loading)  # a drained job leaves its lane
    redrive = ("failures", batch.DRAIN, "--redrive", *loading)
    assert "used by third" in run_command(*redrive, uri=server.uri, code=EXIT_BAD_INPUT).stderr
