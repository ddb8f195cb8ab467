"""Batch jobs on Pub/Sub with the options that are rendered: each on a lane of its own, side by side."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contract.exit_codes import EXIT_BAD_INPUT
from holdfast.inference.queue import fake_broker_server
from holdfast.inference.queue.fake_broker import FakeBroker
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.manifests import batch
from holdfast.manifests.render_context import Body, RenderContext
from infra import describe
from infra.environments import Environment, load
from infra.specs import queue

COUNT = 200


def rendered(lanes: int) -> RenderContext:
    return RenderContext(describe.platform(with_lanes(lanes)))


def with_lanes(lanes: int) -> Environment:
    env = load("example")
    return replace(env, queue=replace(env.queue, lanes=lanes))


def command(body: Body) -> list[str]:
    (main,) = body["spec"]["template"]["spec"]["containers"]
    return main["command"]


def queue_options(words: list[str]) -> list[str]:
    names = ("--topic", "--subscription", "--dead-topic")
    return [word for name in names if name in words for word in (name, words[words.index(name) + 1])]


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=200)
    return process.returncode, stdout, stderr


def require_done(process: "subprocess.Popen[str]") -> str:
    code, stdout, stderr = ended(process)
    assert code == 0, stderr
    return stdout


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
    server: EmbeddedPostgres, broker: tuple[FakeBroker, str], tmp_path: Path
) -> None:
    fake, address = broker
    context = rendered(2)
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": address, "HOLDFAST_DATABASE_URL": server.uri}
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(COUNT)))

    def start(*words: str) -> "subprocess.Popen[str]":
        line = [sys.executable, "-m", "holdfast", "batch", *words]
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def enqueue(job: str, options: list[str]) -> "subprocess.Popen[str]":
        options = options[:4]  # all but the dead-letter topic, which is for workers
        return start("enqueue", job, "--source", str(source), "--body-column", "text", *options)

    loading = queue_options(command(batch.load(context)))
    jobs = {name: queue_options(command(build(context))) for name, build in
            ((batch.DRAIN, batch.drain), (batch.STEADY, batch.steady))}  # fmt: skip
    assert loading == jobs[batch.DRAIN][:4]
    for name, options in jobs.items():
        require_done(enqueue(name, options))
    code, _, stderr = ended(enqueue("third", loading))
    assert (code, "batch-drain" in stderr, "queue.lanes" in stderr) == (EXIT_BAD_INPUT, True, True)
    run = ("--predictor", "entropy", "--events", os.devnull)
    workers = [start("run", name, *run, *options) for name, options in jobs.items()]
    for worker in workers:
        require_done(worker)
    assert [json.loads(require_done(start("status", name, "--json")))["done"] for name in jobs] == [COUNT, COUNT]
    assert fake.dead == []
    assert all(fake.left(options[1]) == 0 for options in jobs.values())
    require_done(enqueue("third", loading))  # a drained job leaves its lane
