"""A sweep of a job file: its points, its Job, and the process of each point."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from holdfast.cost import prices
from holdfast.jobs.file import file_text, sweep_points
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.submit import prepared_job
from holdfast.support.errors import InputError
from tests.platforms import load, with_images
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import find_body, get_pod_spec, render

LISTS = {
    "LR": [0.001, 3e-4, "1e-2"],
    "SEED": [1, 2],
}
SHOW = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['LR'], os.environ['SEED'],"
    " os.environ['HOLDFAST_RUN']]))"
)


def search(**fields: Any) -> JobSpec:
    defaults = {
        "sweep": LISTS,
        "capacity": "spot",
        "command": (sys.executable, "-c", SHOW, "--lr=$(LR)", "$(SEED)", "$(HOME)"),
    }
    return own(**defaults | fields)


def start_point(bodies: list[dict[str, Any]], point: int, folder: Path) -> list[Any]:
    """Run the command of a pod as a container runtime does, and return what its program printed."""
    table = find_body(bodies, "ConfigMap")
    assert table["metadata"]["name"].startswith("sweep-")
    stored = folder / "points.json"
    stored.write_bytes(base64.b64decode(table["binaryData"]["points.json"]))
    (container,) = get_pod_spec(bodies)["containers"]
    env = {"PATH": os.environ["PATH"]}
    for variable in container["env"]:
        env[variable["name"]] = variable.get("value", str(point))
    # Kubernetes expands the variables of a pod, and leaves the others.
    env["HOLDFAST_RUN"] = env["HOLDFAST_RUN"].replace("$(HOLDFAST_POINT)", str(point))
    command: list[str] = []
    for word in container["command"]:
        for name, value in env.items():
            word = word.replace(f"$({name})", value)
        command.append(str(stored) if word == "/run/holdfast-sweep/points.json" else word)
    assert command[0] == "python"
    shown = subprocess.run(
        [sys.executable, *command[1:]],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(shown.stdout.splitlines()[-1])


def test_each_rendered_pod_starts_its_own_point(tmp_path: Path) -> None:
    bodies = render(search())
    shown = [start_point(bodies, point, tmp_path) for point in range(6)]
    assert shown[0] == [
        ["--lr=0.001", "1", "/tmp"],
        "0.001",
        "1",
        "my-run-0",
    ]
    rates = ("0.001", "0.001", "0.0003", "0.0003", "1e-2", "1e-2")
    for point, (row, rate) in enumerate(zip(shown, rates, strict=True)):
        assert row[1] == rate
        assert row[3] == f"my-run-{point}"


def test_points_restart_and_fail_each_for_itself() -> None:
    *_, job = render(search(restarts=7))
    spec = job["spec"]
    assert job["kind"] == "Job"
    assert spec["completions"] == 6
    assert spec["parallelism"] == 4
    assert spec["backoffLimitPerIndex"] == 7
    assert spec["completionMode"] == "Indexed"
    actions = [entry["action"] for entry in spec["podFailurePolicy"]["rules"]]
    assert actions == ["Ignore", "FailIndex", "Ignore"]
    assert spec["template"]["metadata"]["labels"]["holdfast.dev/run-per-index"] == "true"
    *_, job = render(search(parallel=2))
    assert job["spec"]["parallelism"] == 2
    *_, job = render(search(parallel=9))
    assert job["spec"]["parallelism"] == 6, "not more than there are points"


def test_values_reach_the_process_as_they_are(tmp_path: Path) -> None:
    text = "a b; $(touch x) `id` \" ' $LR"
    bodies = render(search(sweep=({"LR": text, "SEED": True}, {"LR": "", "SEED": 5})))
    assert start_point(bodies, 0, tmp_path)[:3] == [
        [f"--lr={text}", "true", "/tmp"],
        text,
        "true",
    ]
    assert start_point(bodies, 1, tmp_path)[:3] == [["--lr=", "5", "/tmp"], "", "5"]
    assert not (tmp_path / "x").exists()


def test_table_is_immutable_and_named_by_its_content() -> None:
    first = find_body(render(search()), "ConfigMap")
    second = find_body(render(search(restarts=9)), "ConfigMap")
    other = find_body(render(search(sweep={"LR": [1], "SEED": [1]})), "ConfigMap")
    assert first["immutable"]
    assert first == second
    assert first["metadata"]["name"] != other["metadata"]["name"]
    assert first["metadata"]["namespace"] == "training"


@pytest.mark.parametrize(
    ("sweep", "got"),
    [
        ((), ""),
        ({"LR": []}, "LR: []"),
        ({"LR": "0.1,0.2"}, "LR: '0.1,0.2'"),
        ({"LR": 0.1}, "LR: 0.1"),
        (
            {
                "A": list(range(100)),
                "B": list(range(100)),
            },
            "10,000 points",
        ),
        ({name: list(range(1000)) for name in "ABCDEFGH"}, "points"),
        (tuple({"A": number} for number in range(1001)), "1,001 points"),
        ({"A": [1, 1]}, "A=1 twice"),
        ({"A": [1, "1"]}, "A=1 twice"),
        (({"A": 1}, {"B": 1}), "row 2 with B"),
        (({"A": 1}, {}), "row 2"),
        (({"A": 1}, 5), "row 2: 5"),
        ("A=1", "'A=1'"),
        (7, "7"),
    ],
)
def test_impossible_sweeps_are_refused_with_what_is_allowed(sweep: Any, got: str) -> None:
    if sweep == ():
        with pytest.raises(InputError, match="no point"):
            sweep_points.parse(sweep)
        return
    with pytest.raises(InputError) as error:
        search(sweep=sweep)
    assert error.value.what == "sweep"
    assert got in error.value.got
    assert "1 to 1,000 points" in error.value.allowed
    assert error.value.fix


def test_stated_sweep_without_a_value_is_refused() -> None:
    """The file `sweep: {}` and the option `--set sweep.LR=$RATES` with an empty variable."""
    document = YAML(typ="safe").load(file_text.dump(own()))
    document["sweep"] = {}
    with pytest.raises(InputError, match=r"job\.yaml: sweep.*no parameter"):
        file_text.parse(document, "job.yaml")
    options = {
        "name": "my-run",
        "environment": "example",
        "image": "trainer",
        "command": ("python", "train.py"),
    }
    with pytest.raises(InputError, match=r"sweep.*LR: \[\]"):
        file_text.assign(["sweep.LR="], options)


def test_points_need_prefixes_where_runs_are_listed() -> None:
    name = "train-sweep"  # listed with two indices
    listed = next(run for run in load("prod").runs if run.name == name)
    count = len(listed.prefixes)
    job = search(
        name=name,
        environment="prod",
        image="trainer",
        sweep={
            "SEED": list(range(count)),
            "LR": [1],
        },
    )
    platform = with_images("prod", "trainer")
    assert prepared_job.prepare(job, platform).bodies
    for other in (
        search(
            name=name,
            environment="prod",
            sweep={
                "SEED": list(range(count + 1)),
                "LR": [1],
            },
        ),
        search(environment="prod"),
    ):
        with pytest.raises(InputError, match="no prefix") as error:
            prepared_job.prepare(other, platform)
        assert f"indices={len(other.points)}" in error.value.fix


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sweep": {"HOLDFAST_RUN": [1]}}, "HOLDFAST_RUN"),
        ({"sweep": {"A": [None]}}, r"sweep\[A\]"),
        ({"sweep": {"A": ["\x00"]}}, r"sweep\[A\]"),
        ({"sweep": {"A": [{"b": 1}]}}, r"sweep\[A\]"),
        ({"nodes": 2}, "nodes"),
        ({"nodes": "2..4"}, "nodes"),
        ({"nodes": 2, "sharded": True}, "nodes"),
        ({"hours": 1.0, "deadline_hours": 9.0}, "deadline_hours"),
        ({"env": {"LR": "1"}}, "a variable of env"),
        ({"secrets": {"SEED": "s"}}, "a variable of env"),
        ({"hours": 100.0, "parallel": 2, "max_hours": 150.0}, "hours of a sweep"),
        ({"hours": 9_000.0, "parallel": 2}, "hours of a sweep"),
        ({"sweep": {}, "parallel": 2}, "parallel"),
        ({"parallel": 0}, "parallel"),
    ],
)
def test_fields_that_do_not_go_with_a_sweep_are_refused(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        search(**fields)


def test_sweeps_with_hours_need_no_max_hours() -> None:
    """Left out, `max_hours` follows from the bad end; stated, it holds for all points together."""
    job = own(
        gpus="1xl4",
        hours=2.0,
        sweep={"SEED": [1, 2, 3]},
        parallel=1,
    )
    assert placement.place(job, load("example"), prices.load()).limit_h > 6.0
    with pytest.raises(InputError, match="hours of a sweep"):
        own(
            gpus="1xl4",
            hours=2.0,
            max_hours=5.0,
            sweep={"SEED": [1, 2, 3]},
            parallel=1,
        )
