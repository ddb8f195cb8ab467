"""Tests of the log: real processes with pipes and terminals, and the parser of event lines."""

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


def run_writer(code: str = WRITER) -> subprocess.CompletedProcess[bytes]:
    writer = subprocess.run(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert writer.returncode == 0, writer.stderr
    return writer


def test_off_a_terminal_lines_are_json_that_the_event_parser_skips() -> None:
    writer = run_writer()
    assert writer.stderr == b""  # GKE gives all of it severity ERROR
    lines = [json.loads(text) for text in writer.stdout.splitlines()]
    first, second = (line for line in lines if "event" not in line)
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {
        "job": "run-1",
        "attempt": 3,
        "rank": 1,
        "severity": "INFO",
        "message": "resumed at step 40",
        "action": "restore",
        "step": 40,
    }
    assert (second["severity"], second["loss"]) == ("ERROR", None)
    assert second["message"].startswith("a rank failed\nTraceback")
    assert second["message"].endswith("RuntimeError: boom")
    parsed = parse(writer.stdout.splitlines())
    assert len(parsed.events) == 2
    assert not parsed.problems


def test_on_a_terminal_lines_are_text() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER],
        env=ENVIRONMENT,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    output = b""
    with suppress(OSError):  # on Linux, after the last writer has closed the terminal
        while chunk := os.read(leader, 4096):
            output += chunk
    assert process.wait() == 0
    os.close(leader)
    assert b"restore: resumed at step 40\r\n" in output
    assert b"error: train: a rank failed\r\n" in output
    assert b"severity" not in output


def test_a_program_may_handle_the_lines_itself() -> None:
    writer = run_writer(
        "import logging, sys\n"
        "logging.getLogger('holdfast').addHandler(logging.StreamHandler(sys.stderr))\n"
        "from holdfast.runtime import logs\n"
        "logs.warning('save', 'slow')\n"
    )
    assert writer.stdout == b""
    assert writer.stderr == b"slow\n"


def test_an_unwritable_log_does_not_stop_the_work() -> None:
    run_writer(
        "import os, sys\nfrom holdfast.runtime import logs\n"
        "os.close(1)\nlogs.info('save', 'x')\nsys.stdout = None\nlogs.info('save', 'y')\n"
    )
