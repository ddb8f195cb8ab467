import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime import pidfiles

TAKES_NOTICES = """
import sys, time
from holdfast.runtime import shutdown
s = shutdown.of_process()
print("ready", flush=True)
s.wait()
time.sleep(float(sys.argv[1]))
print(s.reason)
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path / "roll"))
    return tmp_path / "roll"


def worker(after_s: float = 0.0) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", TAKES_NOTICES, str(after_s)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def drain(window: float = 15) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.runtime.drain", "--window", str(window)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.process
def test_the_hook_stops_every_process_that_takes_notices(run_dir: Path) -> None:
    workers = [worker(), worker(0.3)]
    done = drain()
    assert done.returncode == 0, done.stderr
    assert [w.communicate(timeout=60)[0] for w in workers] == ["drain\n", "drain\n"]


@pytest.mark.process
def test_the_hook_gives_up_inside_the_window(run_dir: Path) -> None:
    slow = worker(600)
    done = drain(window=3.5)
    assert done.returncode == 1
    assert str(slow.pid) in done.stdout
    slow.kill()
    slow.communicate()


@pytest.mark.process
def test_an_empty_container_is_told_and_not_called_a_success(run_dir: Path) -> None:
    done = drain()
    assert done.returncode == 3
    assert "no process that handles notices" in done.stderr


def test_a_pid_used_anew_is_never_signalled(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / f"{os.getpid()}.pid").write_text("born at another time")
    assert pidfiles.registered() == []
    assert not list(run_dir.iterdir())
