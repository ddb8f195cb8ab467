"""Tests that a person at a terminal sees the progress, and a log or a pipe does not."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
WORK = """
import sys, time
from holdfast.support.progress import working
with working("render") as step:
    step("one\\x1b[2J")
    sys.stdin.readline()
print(0)
with working("soon over"):
    pass
"""


def at_a_terminal(command: list[str], *, until: str = "", **variables: str) -> tuple[str, str, int]:
    """Returns standard output, the terminal's content and the exit code.

    Input ends once `until` was shown.
    """
    terminal, stderr = pty.openpty()
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": stderr,
    }
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        text=True,
        **pipes,
    ) as running:
        os.close(stderr)
        assert running.stdin
        assert running.stdout
        shown = b""
        while True:
            try:
                shown += os.read(terminal, 65_536)
            except OSError:  # EIO: the last end of the terminal is closed
                break
            if until and until.encode() in shown:
                running.stdin.close()
                until = ""
        written = running.stdout.read()
    os.close(terminal)
    return written, shown.decode(), running.returncode


def read_seconds(shown: str, beginning: str) -> int:
    """Returns the seconds of the first line with this beginning.

    On a busy machine it is drawn later, or after lines without the step.
    """
    for line in shown.split("\r\x1b[2K"):
        match = re.search(r" \((\d+) s\)$", line)
        if match and line.startswith(beginning):
            return int(match[1])
    raise AssertionError(shown)


@pytest.mark.process
def test_work_that_began_earlier_is_shown_at_once_with_all_its_seconds() -> None:
    work = WORK.replace('working("render")', 'working("render", since_s=time.monotonic() - 60)')
    _, shown, code = at_a_terminal([sys.executable, "-c", work], until="render: one", TERM="xterm")
    assert code == 0
    assert read_seconds(shown, "render: one") >= 60


@pytest.mark.process
def test_long_work_is_shown_with_its_seconds_and_wiped() -> None:
    written, shown, code = at_a_terminal(
        [sys.executable, "-c", WORK], until="render: one", TERM="xterm"
    )
    assert written == "0\n"
    assert code == 0
    assert read_seconds(shown, "render: one\\x1b[2J (") >= 1
    assert shown.endswith("\r\x1b[2K")
    assert "\n" not in shown
    assert "soon" not in shown


@pytest.mark.process
def test_a_terminal_that_cannot_wipe_is_left_alone() -> None:
    """No thread is started that would draw."""
    work = WORK.replace("sys.stdin.readline()", "import threading; print(threading.active_count())")
    assert at_a_terminal([sys.executable, "-c", work], TERM="dumb") == ("1\n0\n", "", 0)
