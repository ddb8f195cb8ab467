"""The real cdktn command line, in a fork that `python -m infra.ops.cdk_terrain` moved: the commands
that test_cdktf_cli.py plays with cdktf.

`make test-next-provider` runs it, since CDK Terrain comes with the next provider
(infra/decisions/0197).
"""

import shutil
from pathlib import Path

import pytest

from infra.contract import names
from infra.ops import cdk_terrain
from tests.plan.isolated import ROOT, environment, node_commands, site_packages
from tests.plan.stand_in.app import NUMBER
from tests.plan.test_cdktf_cli import checkout_with_environment, judge_life, play_page

pytestmark = [pytest.mark.next_provider, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fork = checkout_with_environment(
        tmp_path_factory.mktemp("moved") / "fork",
        project_id="acme-example",
        project_number=NUMBER,
    )
    shutil.copytree(ROOT / "requirements", fork / "requirements")
    shutil.copy(ROOT / "pyproject.toml", fork)
    cdk_terrain.move(fork)
    return fork


def test_page_commands_create_show_and_destroy_a_platform(moved: Path) -> None:
    packages = site_packages(environment("cdktn"))
    command = node_commands(moved / cdk_terrain.NODE_TOOLS) / "cdktn"
    printed = play_page(moved, command, [packages])
    judge_life(printed)
    for stack in names.stacks("example"):
        assert "No changes." in printed[f"plan of {stack}"]
