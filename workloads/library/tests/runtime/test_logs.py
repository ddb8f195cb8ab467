"""Log lines of pods: real processes with pipes and terminals, read by the reader of event lines."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from datetime import datetime

from holdfast.ledger.events import parse

WRITER = """
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
events = EventLog.open("", job="run-1", kind="training")
logs.info("restore", "resumed at step 40", step=40)
events.emit("restore", step=40, seconds=0.5, skipped=[])
try:
    raise RuntimeError("boom")
except RuntimeError as error:
    logs.error("train", "a rank failed", cause=error, loss=float("nan"), where=object)
events.emit("exit", code=70, step=41)
"""
ENVIRONMENT = os.environ | {
    "HOLDFAST_JOB": "run-1",
    "HOLDFAST_ATTEMPT": "3",
    "RANK": "1",
    "HOLDFAST_EVENTS": "",
}


def written(code: str = WRITER) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_off_a_terminal_a_line_is_json_on_standard_output_that_a_reader_of_events_passes_over() -> (
    None
):
    done = written()
    assert done.stderr == b""  # on GKE, severity ERROR whatever it holds
    first, second = (
        line for text in done.stdout.splitlines() if "event" not in (line := json.loads(text))
    )
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    own = {
        "job": "run-1",
        "attempt": 3,
        "rank": 1,
    }
    assert first == own | {
        "severity": "INFO",
        "message": "resumed at step 40",
        "action": "restore",
        "step": 40,
    }
    assert (second["severity"], second["loss"]) == ("ERROR", None)
    assert second["message"].startswith("a rank failed\nTraceback")
    assert second["message"].endswith("RuntimeError: boom")
    reading = parse(done.stdout.splitlines())
    assert len(reading.events) == 2 and not reading.problems


def test_on_a_terminal_it_is_text() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER],
        env=ENVIRONMENT,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    with suppress(OSError):  # Linux: the last writer has closed the terminal
        while chunk := os.read(leader, 4096):
            shown += chunk
    assert process.wait() == 0
    os.close(leader)
    assert (
        b"restore: resumed at step 40\r\n" in shown and b"error: train: a rank failed\r\n" in shown
    )
    assert b"severity" not in shown


def test_a_program_may_take_the_lines_into_its_own_logging_and_a_log_that_cannot_be_written_stops_no_work() -> (
    None
):
    done = written(
        "import logging, sys\n"
        "logging.getLogger('holdfast').addHandler(logging.StreamHandler(sys.stderr))\n"
        "from holdfast.runtime import logs\n"
        "logs.warning('save', 'slow')\n"
    )
    assert (done.stdout, done.stderr) == (b"", b"slow\n")
    written(
        "import os, sys\nfrom holdfast.runtime import logs\n"
        "os.close(1)\nlogs.info('save', 'x')\nsys.stdout = None\nlogs.info('save', 'y')\n"
    )
