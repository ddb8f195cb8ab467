"""Runs Checkov over the rendered manifests: it fails exactly what they skip.

Checkov knows no JobSet, so it gets the Jobs of a JobSet.
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
from tests.workloads.manifests.rendered import Body, load_objects

# The first run installs the tool.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
SKIPPING = "checkov.io/"
Failures = set[tuple[str, str]]
"""(check, kind/namespace/name) of everything that fails."""


def list_inputs(env: str) -> Iterator[Body]:
    """Yields the objects for Checkov, without the skips, so that it judges everything."""
    for body in copy.deepcopy(load_objects(env)):
        metadata = body["metadata"]
        annotations = metadata.get("annotations", {})
        for key in list_skips(body):
            del annotations[key]
        yield body
        if body["kind"] == "JobSet":
            for group in body["spec"]["replicatedJobs"]:
                yield {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": metadata,
                    "spec": group["template"]["spec"],
                }


def list_skips(body: Body) -> dict[str, str]:
    """Returns the annotations of an object that skip a check."""
    annotations = body["metadata"].get("annotations", {})
    return {key: value for key, value in annotations.items() if key.startswith(SKIPPING)}


def run_checkov(folder: Path) -> dict[str, Failures]:
    """Runs Checkov once over all environments. Returns the failures of each."""
    failures: dict[str, Failures] = {env: set() for env in names()}
    for env in failures:
        (folder / env).mkdir()
        for number, body in enumerate(list_inputs(env)):
            text = yaml.dump(body, Dumper=yaml.CSafeDumper)
            (folder / env / f"{number:03}.yaml").write_text(text)
    home = environment("checkov")
    # Without --quiet and --compact it writes 110 MB: all that passed, with the text of each object.
    words = [
        "-d",
        str(folder),
        "--framework",
        "kubernetes",
        "--skip-download",
        "-o",
        "json",
        "--soft-fail",
        "--quiet",
        "--compact",
    ]
    command = [str(home / "bin" / "python"), str(home / "bin" / "checkov"), *words]
    env_without_warnings = os.environ | {"PYTHONWARNINGS": "ignore"}
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=env_without_warnings,
        timeout=300,
        check=True,
    )
    report: dict[str, Any] = json.loads(process.stdout)
    summary = report["summary"]
    assert summary["passed"] > 1_000 and summary["parsing_errors"] == 0, summary
    for check in report["results"]["failed_checks"]:
        title = check["resource"].replace(".", "/")
        env = Path(check["file_path"]).parent.name
        failures[env].add((check["check_id"], title))
    return failures


def list_expected(env: str) -> Failures:
    """Returns what the rendered objects skip, as Checkov names it."""
    failures: Failures = set()
    for body in load_objects(env):
        kind = body["kind"]
        name = body["metadata"]["name"]
        namespace = body["metadata"].get("namespace")
        title = f"{'Job' if kind == 'JobSet' else kind}/{namespace or ''}/{name}"
        for check in skips.find(kind, namespace, name):
            failures.add((check, title))
    return failures


def test_checkov_fails_exactly_the_skipped_checks(tmp_path: Path) -> None:
    """Runs Checkov once for all environments: half of a run is its start."""
    assert run_checkov(tmp_path) == {env: list_expected(env) for env in names()}


def test_skips_have_reasons_and_are_rendered() -> None:
    used_ids: set[int] = set()
    for env in names():
        for body in load_objects(env):
            metadata = body["metadata"]
            identity = (body["kind"], metadata.get("namespace"), metadata["name"])
            assert list_skips(body) == skips.annotations(*identity), identity
            used_ids.add(id(skips.find(*identity)))
    for pattern, checks in skips.SKIPS.items():
        assert id(checks) in used_ids, f"{pattern} is no object of any environment"
        for reason in checks.values():
            assert len(reason.split()) >= 6, pattern
