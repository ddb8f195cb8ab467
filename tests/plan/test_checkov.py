"""Checkov over the real plan of prod: what it finds is what a resource says that it does on
purpose.
"""

# Why it is so: infra/decisions/0012.

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.environments import load
from infra.specs import resources
from tests.plan.isolated import environment
from tests.support import ran

# The first run installs the tool.
pytestmark = [pytest.mark.plan, pytest.mark.process, pytest.mark.timeout(900)]
MOST_SKIPS = 5


def run_checkov(*plan_files: Path) -> set[tuple[str, str]]:
    """(check, address) of everything that Checkov fails."""
    home = environment("checkov")
    options = ["--framework", "terraform_plan", "--skip-download", "-o", "json", "--soft-fail"]
    options += ["--quiet", "--compact"]  # only what fails, without the text of each resource
    command = [
        home / "bin" / "python",
        home / "bin" / "checkov",
        "-f",
        *plan_files,
        *options,
    ]
    done = ran(command, variables=os.environ | {"PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["summary"]["passed"] > 20, "Checkov judged next to nothing"
    return {(check["check_id"], check["resource"]) for check in answer["results"]["failed_checks"]}


@pytest.fixture(scope="module")
def failures(
    load_plans: Callable[[str], dict[str, dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> set[tuple[str, str]]:
    files = []
    for stack in ("foundation-prod", "cluster-prod"):
        files.append(tmp_path_factory.mktemp("checkov") / f"{stack}.json")
    for file in files:
        file.write_text(json.dumps(load_plans("prod")[file.stem]))
    return run_checkov(*files)


def test_checkov_failures_are_declared_exceptions(failures: set[tuple[str, str]]) -> None:
    skips = set()
    for resource in resources(load("prod")):
        skips |= {(check, resource.address) for check in resource.skips}
    assert failures - skips == set(), "beyond what is skipped with a reason"
    assert skips - failures == set(), "skips that nothing needs"


def test_few_checks_are_skipped_and_each_says_why() -> None:
    skips: dict[str, str] = {}
    for resource in resources(load("prod")):
        skips |= resource.skips
    assert len(skips) <= MOST_SKIPS
    assert all(len(reason.split()) >= 5 for reason in skips.values())
