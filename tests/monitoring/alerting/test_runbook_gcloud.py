"""The gcloud commands of the runbook: names that the platform really gives."""

import fnmatch
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from holdfast.contract.job_identity import LABEL_HOLDFAST_JOB
from holdfast.contract.object_names import commit_object
from holdfast.manifests.render_context import RenderContext
from infra import environments
from infra.describe import platform
from monitoring.alerting import runbook
from tests.support import program, ran
from tests.workloads.manifests import rendered

ENVIRONMENT = environments.load("example")
CHECKPOINTS = RenderContext(platform(ENVIRONMENT)).checkpoints
INVENTORY = Path(__file__).parents[2] / "snapshots" / "plan" / "example" / "foundation-example.yaml"
USED = [
    (slug, c) for slug, body in runbook.sections().items() for c in runbook.commands(body) if c.startswith("gcloud ")
]


def jobs() -> dict[str, str]:
    """Name of each rendered training job -> the run that its first pod works on."""
    found: dict[str, str] = {}
    for body, spec in rendered.jobs("example"):
        command = spec["template"]["spec"]["containers"][0]["command"]
        if command[3:5] == ["train", "run"]:
            run = rendered.option(command, "--run").replace("$(JOB_COMPLETION_INDEX)", "0")
            found[body["metadata"]["name"]] = run
    return found


def words(command: str, job: str, folder: Path) -> list[str]:
    """What gcloud would be called with, after the shell."""
    program(folder / "gcloud", '#!/usr/bin/env bash\nprintf "%s\\0" "$@"\n')
    variables = {"JOB": job, "PROJECT": ENVIRONMENT.project, "CLUSTER": ENVIRONMENT.cluster_name}
    variables |= {"CHECKPOINTS": CHECKPOINTS, "NAMESPACE": "training"}
    variables |= {"REGION": ENVIRONMENT.region, "POOL": "spot-a100", "PATH": f"{folder}:{os.environ['PATH']}"}
    done = ran(["bash", "-uc", command], variables=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_what_is_named_is_what_the_platform_makes(tmp_path: Path) -> None:
    made = json.dumps(YAML(typ="safe").load(INVENTORY.read_text()))
    named = re.compile(r"holdfast-example-\w+")
    for _, command in USED:
        for name in named.findall(" ".join(words(command, "job", tmp_path))):
            assert name in made, command


@pytest.mark.parametrize(("job", "run"), jobs().items())
def test_checkpoints_of_a_rendered_job_are_found_by_the_name_in_its_alert(job: str, run: str, tmp_path: Path) -> None:
    asked = [words(command, job, tmp_path) for _, command in USED if "$JOB" in command or "${JOB" in command]
    listed = [word for called in asked if called[0] == "storage" for word in called if word.startswith("gs://")]
    assert len(listed) >= 2
    for pattern in listed:
        folder = pattern.removeprefix(f"{CHECKPOINTS}/")
        assert fnmatch.fnmatch(commit_object(run, 1), f"{folder}/*"), pattern


def test_lines_of_a_job_are_found_by_the_label_that_its_pods_have(tmp_path: Path) -> None:
    asked: list[Any] = [words(command, "job-1", tmp_path) for _, command in USED if "k8s-pod" in command]
    label = f'labels."k8s-pod/{LABEL_HOLDFAST_JOB.replace(".", "_")}"="job-1"'
    assert asked
    assert all(label in called[2] for called in asked)
