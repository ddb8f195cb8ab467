"""Random jobs on every shipped environment: what `place` answers, `new-job` and `submit` write.

Compared are capacity, price, the plan of the mover, the pools that can hold a pod, and the time
after which the job is stopped.
"""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.cost import prices
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import question
from holdfast.jobs.submit import prepared_job
from holdfast.place.job import JobOptions
from holdfast.place.plan import parse_plan
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import ANNOTATION_PLAN, ANNOTATION_REQUEUES_FOR
from tests import platforms

JOBS = 200
BY_COMMAND = 4
"""Jobs of each environment that go through the three commands, as their user types them."""
OPTIONS = JobOptions(
    gpu="",
    gpus=1,
    hours="",
    deadline="none",
    nodes="",
    checkpoint="30s",
)
"""The options of `place` when its user names only a file."""
SHAPES = (
    ("1xl4", (1, 2, "2..4")),
    ("2xl4", (1,)),
    ("1xa100", (1, 2, "2..4")),
    ("2xa100", (1,)),
    ("8xa100", (1, 2)),
)
CAPACITIES = {
    "spot": {"spot"},
    "hybrid": {"spot"},
    "flex-start": {"flex-start", "queued"},
    "on-demand": {"on-demand"},
}


def draw_job(random: Random, name: str) -> dict[str, Any]:
    """Draws the fields of a job: shapes, weeks of work, deadlines, gangs and batches."""
    gpus, all_nodes = random.choice(SHAPES)
    nodes = random.choice(all_nodes)
    hours = round(math.exp(random.uniform(0, math.log(600))), 2)
    kind = random.choice(("sharded", "batch", "deadline", "deadline", "fixed", "plain"))
    fields: dict[str, Any] = {
        "name": name,
        "image": "trainer",
        "command": ("python", "train.py"),
    }
    fields |= {
        "gpus": gpus,
        "nodes": nodes,
        "hours": hours,
    }
    if kind == "sharded" and nodes == 2:
        return fields | {"sharded": True}
    if kind == "batch":
        batch = {
            "nodes": 4,
            "data": "gs://bucket/prompts",
            "predictor": "gpt",
            "command": (),
        }
        return fields | batch | {"image": "batch", "gpus": "1xl4"}
    if isinstance(nodes, int):
        if kind == "deadline":
            slack = random.choice((1.3, 2.0, 4.0))
            fields["deadline_hours"] = round(hours * slack + 0.2, 2)
        elif kind == "fixed":
            fields["resumes"] = False
    if kind != "deadline" and random.random() < 0.2:
        fields["max_hours"] = round(hours * random.choice((1.1, 2.0, 6.0)) + 1, 2)
    return fields


def list_jobs(env: str) -> list[dict[str, Any]]:
    random = Random(f"one engine {env}")
    # An environment that keeps runs apart takes only those that it lists.
    names = [run.name for run in platforms.load(env).runs] or ["my-run"]
    count = -(-JOBS // len(platforms.names()))
    jobs: list[dict[str, Any]] = []
    for number in range(count):
        jobs.append(draw_job(random, names[number % len(names)]))
    return jobs


def check(
    answer: dict[str, Any],
    purchase: dict[str, Any],
    job: dict[str, Any],
    platform: Platform,
) -> None:
    """Compares the answer of `place` with what is bought, and with the object that is sent."""
    choice = answer["chosen"]
    assert purchase["capacity"] in CAPACITIES[choice["placement"]]
    assert purchase["capacity"] == choice["capacity"]
    options: list[dict[str, Any]] = []
    for option in answer["options"]:
        if option["placement"] == choice["placement"] and option["how"] == choice["how"]:
            options.append(option)
    (option,) = options
    assert purchase["usd_per_hour"] == pytest.approx(option["usd_per_hour"], rel=1e-6)
    assert sorted(purchase["pools"]) == sorted(choice["pools"])
    gpus = int(choice["gpus"].partition("x")[0])
    for pool in purchase["pools"]:
        assert platform.pool(pool).gpus_per_node >= gpus, "a pool that can hold the pod"
    annotations = job["metadata"].get("annotations", {})
    text = annotations.get(ANNOTATION_PLAN)
    moves = choice["how"].startswith(("Spot, on-demand in time", "queue, on-demand in time"))
    assert (text is not None) == moves
    if text is not None:
        assert parse_plan(text).spot_usd == pytest.approx(option["usd_per_hour"], rel=1e-4)
    groups = job["spec"].get("replicatedJobs")
    spec = groups[0]["template"]["spec"] if groups else job["spec"]
    # Each Job of a gang on queued nodes ends with them; the mover queues the next one until then.
    stopped_s = int(annotations.get(ANNOTATION_REQUEUES_FOR, spec["activeDeadlineSeconds"]))
    usual = list(option["scenarios"].values())[1]
    assert usual["finish_hours"]["p95"] * 3600 < stopped_s


@pytest.mark.process
@pytest.mark.parametrize("env", platforms.names())
def test_what_place_chooses_is_what_is_written(env: str) -> None:
    platform = platforms.with_images(env)
    beliefs = question.read_beliefs(OPTIONS, "", "")
    counts: dict[str, int] = {}
    refused = 0
    for fields in list_jobs(env):
        job = JobSpec(environment=env, **fields)
        try:
            prepared = prepared_job.prepare(job, platform)
        except InputError as error:
            with pytest.raises(InputError) as place_refused:
                question.place(job, platform, prices.load(), beliefs)
            assert str(place_refused.value) == str(error), "place refuses for the same reason"
            refused += 1
            continue
        placed = question.place(job, platform, prices.load(), beliefs)
        assert f"placed: {placed.reason}" in prepared.notes, fields
        answer = question.make_body(job, placed)
        purchase = prepared_job.plan(prepared).as_json()["purchases"][0]
        try:
            check(answer, purchase, prepared.bodies[-1], platform)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{fields}: {answer['choice']}") from error
        counts[purchase["capacity"]] = counts.get(purchase["capacity"], 0) + 1
    assert counts.keys() >= {"spot", "flex-start", "queued", "on-demand"}, counts
    assert refused < 0.25 * JOBS / len(platforms.names()), (refused, counts)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.process
@pytest.mark.parametrize("env", platforms.names())
def test_commands_agree_on_a_file(env: str, tmp_path: Path) -> None:
    platform = platforms.with_images(env)
    document = ("--platform", str(platforms.write_document(platform, tmp_path / "platform")))
    compared = 0
    for number, fields in enumerate(list_jobs(env)):
        folder = tmp_path / str(number)
        file = folder / f"{fields['name']}.yaml"
        try:
            prepared_job.new_job(JobSpec(environment=env, **fields), platform, file)
        except InputError:
            continue
        answer = json.loads(run("place", "--job", str(file), *document, "--json"))
        submit = (
            "submit",
            str(file),
            *document,
            "--dry-run",
            "--json",
            "--write",
            str(folder / "o"),
        )
        bought = json.loads(run(*submit))
        objects = list(YAML(typ="safe").load_all((folder / "o" / file.name).read_text()))
        check(answer, bought["purchases"][0], objects[-1], platform)
        compared += 1
        if compared == BY_COMMAND:
            break
    assert compared == BY_COMMAND


POINTS = {"SEED": list(range(200))}


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": "any of 1xl4, 1xa100", "hours": 40.0},
        {"gpus": "any of 1xl4, 1xa100", "hours": 40.0, "sweep": POINTS},
        {"gpus": "1xl4", "hours": 40.0, "sweep": POINTS},
    ],
    ids=["any of", "sweep of any of", "sweep"],
)
def test_place_says_when_a_sweep_is_stopped(fields: dict[str, Any]) -> None:
    platform = platforms.with_images("example")
    job = JobSpec(
        name="search",
        environment="example",
        image="trainer",
        command=("python", "train.py"),
        **fields,
    )
    prepared = prepared_job.prepare(job, platform)
    placed = question.place(
        job,
        platform,
        prices.load(),
        question.read_beliefs(OPTIONS, "", ""),
    )
    choice = question.make_body(job, placed)["chosen"]
    purchase = prepared_job.plan(prepared).as_json()["purchases"][0]
    assert choice["capacity"] == purchase["capacity"]
    assert sorted(choice["pools"]) == sorted(purchase["pools"])
    stopped_s = prepared.bodies[-1]["spec"]["activeDeadlineSeconds"]
    assert choice["stopped_after_hours"] * 3600 == stopped_s
    assert stopped_s > job.hours * job.rounds * 3600
    assert f"placed: {placed.reason}" in prepared.notes
    assert ("a bad end (1 in 20) is" in placed.reason) == ("any of" in job.gpus)


def test_sweep_without_gpus_may_run_as_long_as_its_points_take() -> None:
    platform = platforms.with_images("example")
    job = JobSpec(
        name="search",
        environment="example",
        image="trainer",
        command=("python", "train.py"),
        hours=40.0,
        sweep=POINTS,
    )
    spec = prepared_job.prepare(job, platform).bodies[-1]["spec"]
    assert spec["activeDeadlineSeconds"] > job.hours * job.rounds * 3600


def test_a_question_is_answered_by_the_job_that_it_names(tmp_path: Path) -> None:
    """The command that `place` prints writes a job with the same choice."""
    platform = platforms.with_images("example")
    document = platforms.write_document(platform, tmp_path / "platform")
    words = (
        "--gpu",
        "a100",
        "--gpus",
        "8",
        "--hours",
        "40",
        "--deadline",
        "72h",
    )
    answer = json.loads(run("place", *words, "--platform", str(document), "--json"))
    choice = answer["chosen"]
    file = tmp_path / "asked.yaml"
    shape = (
        "--gpus",
        choice["gpus"],
        "--nodes",
        str(choice["nodes"]),
    )
    time = (
        "--hours",
        "40",
        "--deadline",
        "72h",
        "--image",
        "trainer",
    )
    run(
        "new-job",
        "asked",
        *shape,
        *time,
        "--platform",
        str(document),
        "--out",
        str(file),
        "--",
        "a",
    )
    written = json.loads(run("place", "--job", str(file), "--platform", str(document), "--json"))
    assert written["chosen"] == choice and written["options"] == answer["options"]
    assert file_text.read_question(file).gpus == choice["gpus"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), ""),
        (("--checkpoint", "30s"), ""),
        (("--checkpoint", "none"), ""),
        (("--churn", "0.5", "--spot-wait", "3h"), "decide without --churn, --spot-wait:"),
        (("--checkpoint", "5m"), "decide without --checkpoint:"),
    ],
)
def test_place_says_what_no_job_file_can_say(words: tuple[str, ...], named: str) -> None:
    document = ("--platform", str(platforms.file("example")))
    command = ("place", "--gpu", "l4", "--hours", "5h", *document, *words)
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 0
    assert named in result.stderr
    assert bool(named) == ("decide without" in result.stderr)


@pytest.mark.parametrize(
    ("hours", "resumes", "capacity"), [(200.0, False, "flex-start"), (400.0, True, "spot")]
)
def test_weeks_are_priced_or_refused(
    hours: float, resumes: bool, capacity: str, tmp_path: Path
) -> None:
    """Four hundred hours are linted and priced; what outlives its nodes is refused at once."""
    platform = platforms.with_images("example")
    job = JobSpec(
        name="long",
        environment="example",
        image="trainer",
        command=("python", "train.py"),
        gpus="1xa100",
        hours=hours,
        resumes=resumes,
        capacity=capacity,
    )
    if resumes:
        prepared = prepared_job.prepare(job, platform)
        spec = prepared.bodies[-1]["spec"]
        assert spec["activeDeadlineSeconds"] > hours * 3600 > 7 * 86_400
        usd = prepared_job.plan(prepared).usd_per_hour
        assert usd is not None and usd > 0
        document = platforms.write_document(platform, tmp_path / "platform")
        file = tmp_path / "long.yaml"
        file.write_text(file_text.dump(job))
        options = (str(file), "--platform", str(document))
        assert "1 files: 0 error, 0 warning" in run("lint", *options)
        assert f"{usd:.2f}" in run("submit", *options, "--dry-run")
        return
    with pytest.raises(InputError, match="nodes end after 168 h"):
        prepared_job.prepare(job, platform)
