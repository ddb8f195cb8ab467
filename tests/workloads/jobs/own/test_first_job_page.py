"""The page "from nothing to your first job": each of its commands is run here, or by a test of the cluster tier."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workloads.__main__ import app

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "workloads/jobs/own/FIRST_JOB.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.strip().splitlines()]
# Against a control plane: tests/cluster/test_operators, test_platform, test_first_run, test_explain.
IN_CLUSTERS = ("try", "list", "explain")
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.usefixtures("gcloud")
def test_every_command_of_the_page_runs_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []
    for line in COMMANDS:
        first, *rest = shlex.split(line)
        if first == "make":
            assert rest[0] in TARGETS, line
            continue
        verb = rest[2]
        done = CliRunner().invoke(app, [verb, "--help"] if verb in IN_CLUSTERS else rest[2:], catch_exceptions=False)
        assert done.exit_code == 0, f"{line}: {done.output}"
        ran.append(verb)
    assert ran == ["try", "new-job", "lint", "submit", "list", "explain"]
    assert (tmp_path / "my-run.yaml").exists() and (tmp_path / "gitops/my-run.yaml").exists()
