"""The three doors open fast and speak one grammar."""

import json
import subprocess
import sys

import pytest

DOORS = ("holdfast", "infra", "workloads", "monitoring")
HEAVY = ("torch", "cdktf", "jsii", "altair", "google", "kubernetes", "numpy", "psycopg")


def door(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", DOORS)
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


@pytest.mark.parametrize("name", DOORS)
def test_help_tells_the_exit_codes(name: str) -> None:
    done = door(name, "--help")
    assert done.returncode == 0
    assert "0 done" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", DOORS)
def test_an_unknown_command_is_a_usage_error(name: str) -> None:
    assert door(name, "no-such-verb").returncode == 2
