"""Checkov over the rendered manifests: it fails what they skip and nothing else, and every skip
says why.

It knows no JobSet, so its Jobs are shown to it as Jobs.
"""

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.manifests import skips
from tests.plan.isolated import environment
from tests.platforms import names
from tests.workloads.manifests.rendered import Body, bodies

# The first run installs the tool.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
SKIPPING = "checkov.io/"
Found = set[tuple[str, str]]
"""(check, kind/namespace/name) of everything that fails."""


def shown(env: str) -> Iterator[Body]:
    """What Checkov is given: without the skips, so that nothing is left out."""
    for body in copy.deepcopy(bodies(env)):
        about = body["metadata"]
        about["annotations"] = {
            k: v for k, v in about.get("annotations", {}).items() if not k.startswith(SKIPPING)
        }
        yield body
        if body["kind"] == "JobSet":
            for group in body["spec"]["replicatedJobs"]:
                yield {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": about,
                    "spec": group["template"]["spec"],
                }


def checkov(folder: Path) -> dict[str, Found]:
    """Environment -> what fails in its objects."""
    found: dict[str, Found] = {env: set() for env in names()}
    for env in found:
        (folder / env).mkdir()
        for number, body in enumerate(shown(env)):
            (folder / env / f"{number:03}.yaml").write_text(
                yaml.dump(body, Dumper=yaml.CSafeDumper)
            )
    home = environment("checkov")
    words = [
        "-d",
        str(folder),
        "--framework",
        "kubernetes",
        "--skip-download",
        "-o",
        "json",
        "--soft-fail",
    ]
    command = [str(home / "bin" / "python"), str(home / "bin" / "checkov"), *words]
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=quiet,
        timeout=300,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["summary"]["passed"] > 1_000 and answer["summary"]["parsing_errors"] == 0, answer[
        "summary"
    ]
    for check in answer["results"]["failed_checks"]:
        kind, *rest = check["resource"].split(".")
        found[Path(check["file_path"]).parent.name].add(
            (check["check_id"], "/".join((kind, *rest)))
        )
    return found


def wanted(env: str) -> Found:
    """What the rendered objects skip, as Checkov will name it."""
    found: Found = set()
    for body in bodies(env):
        kind = body["kind"]
        about = body["metadata"]
        title = (
            f"{'Job' if kind == 'JobSet' else kind}/{about.get('namespace', '')}/{about['name']}"
        )
        found |= {(check, title) for check in skips.of(kind, about.get("namespace"), about["name"])}
    return found


def test_checkov_fails_exactly_what_is_skipped(tmp_path: Path) -> None:
    """One test for one run of Checkov: several would each start one in the worker that they come
    to.
    """
    assert checkov(tmp_path) == {env: wanted(env) for env in names()}


def test_every_skip_says_why_and_the_rendered_objects_repeat_it() -> None:
    used: set[int] = set()
    for env in names():
        for body in bodies(env):
            where = (body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"])
            skipped = {}
            for k, v in body["metadata"].get("annotations", {}).items():
                if k.startswith(SKIPPING):
                    skipped[k] = v
            assert skipped == skips.annotations(*where), where
            used.add(id(skips.of(*where)))
    for pattern, checks in skips.SKIPS.items():
        assert id(checks) in used, f"{pattern} is no object of any environment"
        assert all(len(reason.split()) >= 6 for reason in checks.values()), pattern
