"""The real cdktf command line works from this checkout through cdktf.json."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from infra import cdk, main
from infra.contract import names
from infra.environments import load
from infra.ops import engine
from infra.ops.provider_lock import LOCK
from infra.specs.outputs import outputs
from tests import support
from tests.plan.conftest import lacks_provider
from tests.plan.stand_in import apply
from tests.plan.stand_in.app import NUMBER
from tests.plan.stand_in.server import serving

ROOT = Path(__file__).parents[2]
CDKTF = ROOT / ".node" / "node_modules" / ".bin" / "cdktf"
# Of each command, what a page does not show: the mirror has no checksums of other platforms, and
# nobody answers here.
MIRRORED = ["--skip-provider-lock"]
AT_ONCE = [
    *MIRRORED,
    "--auto-approve",
    "--terraform-parallelism",
    "40",
]
# One stack without those before it, which are there.
ALONE = "--ignore-missing-stack-dependencies"
OFFLINE = {
    "diff": MIRRORED,
    "output": MIRRORED,
    "deploy": AT_ONCE,
    "destroy": AT_ONCE,
}
pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]


def type_command(
    words: Sequence[str],
    root: Path,
    variables: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run a command as a person types it, with cdktf, Node and the engine on PATH."""
    support.require(CDKTF.exists(), "the cdktf command is missing; `make cdktf-cli` installs it")
    path = os.pathsep.join([str(CDKTF.parent), str(engine.node_folder()), variables["PATH"]])
    # As `deploy` starts it: without a terraform on PATH the wheel's is named.
    environment = {
        **variables,
        "PATH": path,
        "TERRAFORM_BINARY_NAME": engine.program(),
        "CI": "1",
    }
    return support.ran([CDKTF, *words[1:]], root, environment)


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


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the page's commands in order on a fork of the example against the stand-in. Returns the
    output of each.
    """
    fork = checkout_with_environment(
        tmp_path_factory.mktemp("by-hand") / "fork",
        project_id="acme-example",
        project_number=NUMBER,
    )
    page = (
        (ROOT / "infra/docs/how-to/upgrading.md")
        .read_text()
        .partition("## With cdktf")[2]
        .split("```")[1]
    )
    export, *lines = [line.partition("#")[0].split() for line in page.strip().splitlines()[1:]]
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
        variables = {k: v for k, v in project.engine().environment.items() if k != "NODE_OPTIONS"}
        variables |= {
            "HOLDFAST_ENV": "example",
            "PYTHONPATH": f"{fork}{os.pathsep}{fork / 'workloads/library'}",
        }
        for line in lines:
            words = [word.replace("-eu", "-example").strip("'") for word in line]
            done = type_command([*words, *OFFLINE.get(words[1], [])], fork, variables)
            command = f"{words[1]} alone" if ALONE in words else words[1]
            printed[command] = done.stdout + done.stderr
            assert done.returncode == 0, printed[command][-4_000:]
            printed[f"resources after {command}"] = str(len(world.resources))
            if command == "deploy":
                folders = []
                for stack in names.stacks("example"):
                    folders.append(fork / "cdktf.out" / "stacks" / stack)
                with ThreadPoolExecutor() as pool:
                    printed["differs"] = "".join(
                        str(change) for change in pool.map(project.changes, folders) if change
                    )
    return printed


def find_applied(output: str) -> list[str]:
    """Return the stacks that were applied, in their order. A line of output may come in several
    pieces: the stack is named where its piece begins.
    """
    named = rf"^({'|'.join(names.stacks('example'))}) "
    pieces = output.split("Apply complete!")[:-1]
    return [re.findall(named, piece, re.MULTILINE)[-1] for piece in pieces]


def test_page_commands_create_show_and_destroy_a_platform(by_hand: dict[str, str]) -> None:
    stacks = names.stacks("example")
    for command in ("list", "synth"):
        assert all(stack in by_hand[command] for stack in stacks), by_hand[command]
    addresses = (ROOT / "tests" / "snapshots" / "addresses.txt").read_text().splitlines()
    count = sum(address.startswith("cluster-example ") for address in addresses)
    assert f"{count} to add, 0 to change, 0 to destroy" in by_hand["diff"], (
        "of one stack, before anything is there"
    )
    assert int(by_hand["resources after diff"]) == 0 < 70 < int(by_hand["resources after deploy"])
    assert find_applied(by_hand["deploy"]) == [*stacks], "in the order of their dependencies"
    assert by_hand["differs"] == "", "a plan after the apply is empty"
    assert find_applied(by_hand["deploy alone"]) == [stacks[-1]]
    assert by_hand["resources after deploy alone"] == by_hand["resources after deploy"]
    assert by_hand["resources after destroy"] == "1", "the abandoned peering"


def test_outputs_match_the_environment(by_hand: dict[str, str]) -> None:
    printed = re.sub(r"\s+", "", by_hand["output"])
    expected = outputs(replace(load("example"), project_id="acme-example", project_number=NUMBER))
    assert len(expected) == 3
    for shown in expected.values():
        for name, value in shown.items():
            assert re.sub(r"\s+", "", f"{name.replace(' ', '_')}={value}") in printed, name


def checkout_with_environment(fork: Path, **fields: str) -> Path:
    """A copy of this checkout whose `example` says something else. Without checksums: a mirror's
    provider has its own.
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
