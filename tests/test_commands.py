"""The command lines start fast and speak one grammar; a cloud is never reached without a name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ("holdfast", "infra", "workloads", "monitoring")
HEAVY = ("torch", "cdktf", "jsii", "altair", "google", "kubernetes", "numpy", "psycopg")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_imports_nothing_heavy(name: str) -> None:
    code = (
        "import json, runpy, sys\n"
        f"sys.argv = [{name!r}, '--help']\n"
        "try:\n"
        f"    runpy.run_module({name!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_tells_the_exit_codes(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert "0 done" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unknown_command_is_a_usage_error(name: str) -> None:
    assert run(name, "no-such-verb").returncode == 2


def test_the_shell_completes_commands() -> None:
    code = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli import main; main()"
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast che", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["checkpoints"]


CLOUD = re.findall(r"^([a-z-]+):.*\n(?:\t.*\n)*?\t.*NAMED_ENV", (ROOT / "Makefile").read_text(), re.M)


def test_targets_that_reach_a_cloud_are_found() -> None:
    assert {"deploy", "destroy", "apply", "images", "prove", "bootstrap"} <= set(CLOUD)


@pytest.mark.parametrize("target", CLOUD)
def test_a_cloud_is_never_reached_without_a_name(target: str) -> None:
    def make(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "ENV"}
        command = ["make", "--dry-run", target, "MAX_USD=1", *words]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    refused = make()
    assert refused.returncode == 2
    assert "got no ENV" in refused.stderr and f"fix: make {target} ENV=NAME" in refused.stderr
    assert make("ENV=eu").returncode == 0
