"""Workflow files: pinned, without standing credentials, and clean under the linters that are run on
them.
"""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.environments.schema import Environment
from infra.specs.delivery import resources
from infra.specs.outputs import outputs
from tests.check_workflows import WORKFLOWS, check
from tests.infra.samples import DELIVERY, make_hardened
from tests.support import ROOT, program, ran

FILES = sorted(WORKFLOWS.glob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_and_nothing_is_granted_to_all_jobs(file: Path) -> None:
    text = file.read_text()
    for action in re.findall(r"uses: (\S+)(.*)", text):
        assert re.search(r"@[0-9a-f]{40}$", action[0]), action
        assert re.match(r" # v\d", action[1]), action
    assert "secrets." not in text, "keyless: identities are exchanged, nothing is stored"
    assert set((YAML(typ="safe").load(text)["permissions"] or {}).values()) <= {"read"}


def test_jobs_with_credentials_never_run_foreign_code() -> None:
    for file in FILES:
        workflow = YAML(typ="safe").load(file.read_text())
        for job in workflow["jobs"].values():
            if "id-token" in job.get("permissions", {}) and "pull_request" in workflow.get(
                "on", {}
            ):
                assert "head.repo.full_name == github.repository" in job["if"], file
            assert "pull_request_target" not in workflow.get("on", {})


def test_each_supported_python_is_tested() -> None:
    bounds = re.search(
        r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert bounds
    supported = set()
    for minor in range(int(bounds[1]), int(bounds[2])):
        supported.add(f"3.{minor}")
    tested = set(re.findall(r'"(3\.\d+)"', (WORKFLOWS / "ci.yml").read_text()))
    assert tested == supported


PROMOTION = ("plan", "deploy", "drift")


def find_job(name: str) -> dict[str, Any]:
    workflow = YAML(typ="safe").load((WORKFLOWS / f"{name}.yml").read_text())
    (job,) = workflow["jobs"].values()
    return job


def has_gate(name: str, gate: str) -> Environment:
    return replace(
        make_hardened(),
        name=name,
        delivery=replace(DELIVERY, environment=gate),
    )


@pytest.mark.parametrize("name", PROMOTION)
def test_outputs_print_what_workflows_need(name: str) -> None:
    entry = json.loads(outputs(has_gate("dev", "dev"))["foundation"]["HOLDFAST_ENVIRONMENTS"])[0]
    used = set(re.findall(r"matrix\.(\w+)", (WORKFLOWS / f"{name}.yml").read_text()))
    assert used <= {*entry, "runner"}
    assert {"env", "provider"} <= used
    assert (
        find_job(name)["strategy"]["matrix"]["include"]
        == "${{ fromJSON(vars.HOLDFAST_ENVIRONMENTS || '[]') }}"
    )


def test_environments_deploy_in_order_each_behind_its_gate() -> None:
    deploy = find_job("deploy")
    plan = find_job("plan")
    assert (deploy["strategy"]["max-parallel"], deploy["strategy"]["fail-fast"]) == (1, True)
    assert deploy["environment"] == "${{ matrix.gate }}"
    assert "environment" not in plan
    for environment in (has_gate("dev", "dev"), has_gate("prod", "production")):
        entry = json.loads(outputs(environment)["foundation"]["HOLDFAST_ENVIRONMENTS"])[0]
        grants = {}
        for r in resources(environment):
            if r.id.startswith("workflows-"):
                grants[r.id] = str(r.arguments["member"])
        gate = f"environment:{entry['gate']}"
        assert grants["workflows-deployer"].endswith(
            f"/subject/repo:acme@123456/platform@456789:{gate}"
        )
        assert grants["workflows-deployer-by-name"].endswith(f"/subject/repo:acme/platform:{gate}")
        assert (
            entry["provider"].split("/workloadIdentityPools/")[1].split("/")[0]
            in grants["workflows-planner"]
        )


def list_steps(name: str) -> dict[str, str]:
    """Name of a step -> its script, of the last job of a workflow."""
    workflow = YAML(typ="safe").load((WORKFLOWS / f"{name}.yml").read_text())
    jobs = workflow["jobs"]
    steps: dict[str, str] = {}
    for step in [*jobs.values()][-1]["steps"]:
        if "name" in step:
            steps[step["name"]] = step["run"]
    return steps


def test_images_are_signed_by_digest_and_their_pins_printed(tmp_path: Path) -> None:
    """The steps as they are, with the tools that they call played."""
    programs = tmp_path / "bin"
    log = tmp_path / "calls"
    digest = f"us-docker.pkg.dev/acme/ml/trainer:1@sha256:{'a' * 64}"
    for name in ("gcloud", "cosign"):
        program(programs / name, f'#!/bin/sh\necho "{name} $*" >> {log}\n')
    program(tmp_path / ".venv/bin/python", f'#!/bin/sh\necho "python $*" >> {log}\necho {digest}\n')
    for name in ("workloads/images", "workloads/rendered/example"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "workloads/images/digests.json").write_text("{}\n")
    document = json.dumps({"registry": "us-docker.pkg.dev/acme/ml"})
    (tmp_path / "workloads/rendered/example/platform.json").write_text(document)
    program(programs / "jq", "#!/bin/sh\necho us-docker.pkg.dev/acme/ml\n")
    ran(["git", "init", "--quiet"], tmp_path, {})
    ran(["git", "add", "workloads/images/digests.json"], tmp_path, {})
    (tmp_path / "workloads/images/digests.json").write_text('{"trainer": "new"}\n')
    summary = tmp_path / "summary"
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "ENVIRONMENT": "example",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    for script in list_steps("images").values():
        done = ran(["bash", "-e", "-c", script], tmp_path, variables)
        assert done.returncode == 0, done.stderr
    calls = log.read_text().splitlines()
    assert calls[0] == "gcloud --quiet auth configure-docker us-docker.pkg.dev"
    assert calls[-1] == f"cosign sign --yes --recursive {digest}"
    assert digest in summary.read_text()
    assert '+{"trainer": "new"}' in summary.read_text()


def test_only_the_chosen_environment_is_built() -> None:
    jobs = YAML(typ="safe").load((WORKFLOWS / "images.yml").read_text())["jobs"]
    entry = json.loads(outputs(has_gate("dev", "dev"))["foundation"]["HOLDFAST_ENVIRONMENTS"])[0]
    text = json.dumps(jobs)
    used = set(re.findall(r"needs\.choose\.outputs\.entry\)\.(\w+)", text))
    assert used == {"gate", "provider", "deployer"}
    assert used <= {*entry}
    assert jobs["images"]["needs"] == "choose"


@pytest.mark.parametrize("pushed", [True, False])
def test_the_cluster_half_is_applied_once_its_images_are_known(
    tmp_path: Path, pushed: bool
) -> None:
    """The step as it is, with the commands that it calls played."""
    calls = tmp_path / "bin"
    digests = tmp_path / "workloads/images"
    log = tmp_path / "calls"
    digests.mkdir(parents=True)
    (digests / "digests.json").write_text(json.dumps({"example": {}} if pushed else {"other": {}}))
    for name in ("make", "gcloud"):
        program(calls / name, f'#!/bin/sh\necho "{name} $*" >> {log}\n')
    program(tmp_path / ".venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    steps = find_job("deploy")["steps"]
    step = next(step for step in steps if "cluster" in step.get("name", ""))
    variables = {
        "PATH": f"{calls}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT}/workloads/library",
    }
    variables |= {
        "ENVIRONMENT": "example",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    done = ran(["bash", "-e", "-c", step["run"]], tmp_path, variables)
    assert done.returncode == 0, done.stderr
    if pushed:
        reach, apply = log.read_text().splitlines()
        assert reach.startswith("gcloud container clusters get-credentials holdfast-example ")
        assert apply == "make operators apply ENV=example YES=1"
    else:
        assert not log.exists()
        assert "make operators-pin images ENV=example" in (tmp_path / "summary").read_text()


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_linters_find_a_bad_file(tmp_path: Path) -> None:
    """`make check` runs them over the files of this checkout."""
    (tmp_path / "bad.yml").write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: nowhere\n    steps:\n      - run: echo"
        " ${{ github.head_ref }}\n"
    )
    assert check(tmp_path) != 0
