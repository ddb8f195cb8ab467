"""The drill of a fork: one file of its own, and everything from its check to the tests that judge
environments holds.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.environments.checks import PLACEHOLDER
from tests.plan.stand_in.app import NUMBER
from tests.plan.test_upgrade import fork, git
from tests.support import ran
from tests.tiers import TIERS

__all__ = ["fork"]
pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]

# These tests take each environment as a parameter.
JUDGES = (
    "tests/workloads/manifests",
    "tests/workloads/operators",
    "workloads/library/tests/jobs/test_manifests.py",
    "tests/infra/environments",
    "tests/infra/rules",
)


def run_in_fork(fork: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the fork's own code, whatever is installed here; it must succeed."""
    library = fork / "workloads" / "library"
    python_path = f"{fork}{os.pathsep}{library}"
    variables = {
        **os.environ,
        "PYTHONPATH": python_path,
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    done = ran(command, fork, variables)
    printed = f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
    assert done.returncode == 0, f"{command}\n{printed}"
    return done


def run(fork: Path, *words: str) -> str:
    return run_in_fork(fork, sys.executable, "-m", *words).stdout


def fill_in(file: Path, project: str) -> None:
    text = file.read_text()
    for field, value in {
        "project_id": project,
        "project_number": NUMBER,
        "state_bucket": f"{project}-state",
    }.items():
        text, times = re.subn(rf'{field}="{PLACEHOLDER}"', f'{field}="{value}"', text)
        assert times == 1, field
    file.write_text(text.replace(f"{PLACEHOLDER}@example.org", "ml@acme.example"))


def read_commands(readme: str) -> list[list[str]]:
    """The commands of the README for a fork, of which `eu` is the environment."""
    block = readme.partition("## Fork it")[2].split("```")[1]
    commands = block.strip().splitlines()[1:]
    lines = [command.partition("#")[0].split() for command in commands]
    return [[re.sub(r"\beu\b", "globex", word) for word in line] for line in lines]


def test_an_environment_is_one_file(fork: Path) -> None:
    new, check, plan, deploy, outputs, _ = read_commands((fork / "README.md").read_text())
    assert plan == ["make", "plan", "ENV=globex"]
    assert (deploy, outputs) == (
        ["make", "bootstrap", "deploy", "ENV=globex"],
        ["make", "outputs", "ENV=globex"],
    )
    file = run(fork, *new[2:]).strip()
    assert file == "infra/environments/globex.py"
    fill_in(fork / file, "globex-ml")
    assert "0 findings, 0 placeholders: right" in run(fork, *check[2:])
    # Its plan is that of test_first_week.py. What follows needs a project and then a cluster: the
    # pages of the first job.
    assert "gcloud storage buckets create gs://globex-ml-state" in run(
        fork,
        "infra",
        "bootstrap",
        "globex",
        "--dry-run",
    )
    assert "gcloud container clusters get-credentials holdfast-globex" in run(
        fork,
        "infra",
        "outputs",
        "globex",
    )
    written = run(fork, "workloads", "render", "globex").splitlines()
    assert len(written) > 10 and all("workloads/rendered/globex/" in path for path in written)
    assert "0 error, 0 warning" in run(fork, "holdfast", "lint", "workloads/rendered/globex")
    judged = run(
        fork,
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-m",
        TIERS["fast"].marks,
        "-k",
        "globex",
        *JUDGES,
    )
    passed = re.search(r"^(\d+) passed, \d+ deselected in", judged, re.M)
    assert passed and int(passed[1]) > 20, judged
    # None of the upstream lines was touched, and what is new is the file and what was made of it.
    assert git(fork, "status", "--porcelain").splitlines() == [
        f"?? {file}",
        "?? workloads/rendered/globex/",
    ]
