"""kube-score and Checkov over the rendered manifests: 0 failed, and every skip is needed and says why.

Neither knows a JobSet, so its Jobs are shown to them as Jobs.
"""

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.manifests import skips
from tests.plan.isolated import environment
from tests.platforms import names
from tests.tools.build import TOOLS, build
from tests.workloads.manifests.rendered import Body, bodies

# The first run installs the tools.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
SKIPPING = ("checkov.io/", "kube-score/")
Found = set[tuple[str, str]]
"""(check, kind/namespace/name) of everything that fails."""


def shown(env: str, *, skipping: bool) -> Iterator[Body]:
    """What the tools are given; without `skipping` nothing is left out."""
    for body in copy.deepcopy(bodies(env)):
        about = body["metadata"]
        if not skipping:
            kept = {k: v for k, v in about.get("annotations", {}).items() if not k.startswith(SKIPPING)}
            about["annotations"] = kept
        yield body
        if body["kind"] == "JobSet":
            for group in body["spec"]["replicatedJobs"]:
                yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": group["template"]["spec"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shown")
    for env in names():
        for skipping in (True, False):
            (root / str(skipping) / env).mkdir(parents=True)
            for number, body in enumerate(shown(env, skipping=skipping)):
                with (root / str(skipping) / env / f"{number:03}.yaml").open("w") as file:
                    yaml.dump(body, file, yaml.CSafeDumper)
    return root


def kube_score(files: Path) -> Found:
    command = [build(TOOLS["kube-score"]), "score", "--kubernetes-version", "v1.35", "--all-default-optional"]
    done = subprocess.run(
        [*command, "-o", "json", *sorted(files.glob("*.yaml"))], capture_output=True, text=True, check=False
    )
    judged = json.loads(done.stdout)
    checks = [(check, of) for of in judged for check in of["checks"] if not check["skipped"]]
    assert len(checks) > 150, done.stderr
    return {
        (check["check"]["id"], title(of["type_meta"], of["object_meta"])) for check, of in checks if check["grade"] < 10
    }


def title(typed: Body, about: Body) -> str:
    return f"{typed['kind']}/{about.get('namespace', '')}/{about['name']}"


def checkov(folder: Path) -> dict[str, Found]:
    """Folder below `folder` -> what fails in it."""
    home = environment("checkov")
    words = ["-d", str(folder), "--framework", "kubernetes", "--skip-download", "-o", "json", "--soft-fail"]
    done = subprocess.run(
        [str(home / "bin" / "python"), str(home / "bin" / "checkov"), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        timeout=300,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["summary"]["passed"] > 2_000 and answer["summary"]["parsing_errors"] == 0, answer["summary"]
    found: dict[str, Found] = {str(inner.relative_to(folder)): set() for inner in folder.glob("*/*")}
    for check in answer["results"]["failed_checks"]:
        kind, *rest = check["resource"].split(".")
        found[str(Path(check["file_path"].lstrip("/")).parent)].add((check["check_id"], "/".join((kind, *rest))))
    return found


def wanted(env: str, *, of_checkov: bool) -> Found:
    """What the rendered objects skip, as the tools will name it."""
    found: Found = set()
    for body in bodies(env):
        kind, about = body["kind"], body["metadata"]
        for check in skips.of(kind, about.get("namespace"), about["name"]):
            if check.startswith("CKV") is of_checkov:
                found.add((check, title({"kind": "Job" if kind == "JobSet" else kind}, about)))
    return found


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {priorityClassName: gone, containers: [{name: m, image: x}]}\n"


def test_one_command_runs_all_three_and_each_finds_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    command = [sys.executable, "-m", "tests.tools.beside"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, timeout=600)
    _, ours, score, checkov = re.split("== (?:holdfast|kube-score|Checkov)\n", done.stdout)
    assert done.returncode == 1, done.stderr
    assert "HF" in ours and "[CRITICAL]" in score and "CKV_K8S_" in checkov
    refused = subprocess.run(
        [*command, str(tmp_path / "gone")], capture_output=True, text=True, check=False, timeout=60
    )
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, "error:   no such path")


@pytest.mark.parametrize("env", names())
def test_kube_score_fails_nothing(env: str, folder: Path) -> None:
    assert kube_score(folder / "True" / env) == set()


@pytest.mark.parametrize("env", names())
def test_kube_score_would_fail_exactly_what_is_skipped(env: str, folder: Path) -> None:
    assert kube_score(folder / "False" / env) == wanted(env, of_checkov=False)


def test_checkov_fails_nothing_and_would_fail_exactly_what_is_skipped(folder: Path) -> None:
    """One test for one run of Checkov: several would each start one in the worker that they come to."""
    expected: dict[str, Found] = {f"True/{env}": set() for env in names()}
    assert checkov(folder) == expected | {f"False/{env}": wanted(env, of_checkov=True) for env in names()}


def test_every_skip_says_why_and_the_rendered_objects_repeat_it() -> None:
    used: set[int] = set()
    for env in names():
        for body in bodies(env):
            where = (body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"])
            skipped = {k: v for k, v in body["metadata"].get("annotations", {}).items() if k.startswith(SKIPPING)}
            assert skipped == skips.annotations(*where), where
            used.add(id(skips.of(*where)))
    for pattern, checks in skips.SKIPS.items():
        assert id(checks) in used, f"{pattern} is no object of any environment"
        assert all(len(reason.split()) >= 6 for reason in checks.values()), pattern
