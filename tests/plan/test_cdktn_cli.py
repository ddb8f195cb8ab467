"""The real cdktn command line, in a fork that `python -m infra.ops.cdk_terrain` moved: the commands
that test_cdktf_cli.py plays with cdktf.

`make test-next-provider` runs it, since CDK Terrain comes with the next provider
(infra/decisions/0197).
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from infra.contract import names
from infra.ops import cdk_terrain
from tests import support
from tests.plan.isolated import CACHE, ROOT, environment, site_packages
from tests.plan.stand_in.app import NUMBER
from tests.plan.test_cdktf_cli import checkout_with_environment, judge_life, play_page

pytestmark = [pytest.mark.next_provider, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = checkout_with_environment(
        tmp_path_factory.mktemp("moved") / "fork",
        project_id="acme-example",
        project_number=NUMBER,
    )
    shutil.copytree(ROOT / "requirements", checkout / "requirements")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    cdk_terrain.move(checkout)
    return checkout


def install_command(folder: Path) -> Path:
    """Return the cdktn command of exactly the packages of a folder's package-lock.json; installed
    once, in the user's cache.
    """
    lock = folder / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    home = CACHE / f"cdktn-cli-{digest[:16]}"
    command = home / "node_modules" / ".bin" / "cdktn"
    npm = Path(sys.prefix) / "bin" / "npm"
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline"]
    # The folder of npm has the node that starts it.
    path = os.pathsep.join([str(npm.parent), os.environ["PATH"]])
    with support.lock(CACHE / "cdktn-cli.lock"):
        if not command.exists():
            shutil.copytree(folder, home, dirs_exist_ok=True)
            done = support.ran([npm, "ci", *options], home, {**os.environ, "PATH": path})
            support.require(done.returncode == 0, f"cdktn cannot be installed: {done.stderr}")
    return command


def test_page_commands_create_show_and_destroy_a_platform(fork: Path) -> None:
    packages = site_packages(environment("cdktn"))
    command = install_command(fork / cdk_terrain.NODE_TOOLS)
    printed = play_page(fork, command, [packages])
    judge_life(printed)
    for stack in names.stacks("example"):
        assert "No changes." in printed[f"plan of {stack}"]
