"""Tests of the log: real processes with pipes and terminals, and the parser of event lines."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

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


def run_writer(
    code: str = WRITER, variables: dict[str, str] = ENVIRONMENT
) -> subprocess.CompletedProcess[bytes]:
    writer = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        capture_output=True,
        check=False,
    )
    assert writer.returncode == 0, writer.stderr
    return writer


def test_lines_in_a_pod_are_json_that_the_event_parser_skips() -> None:
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
    assert second["severity"] == "ERROR"
    assert second["loss"] is None
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


USER_PROGRAMS = {
    "handler of the logger": (
        "logging.getLogger('holdfast').addHandler(logging.StreamHandler(sys.stderr))",
        b"begins\nslow\n",
    ),
    "format of the root": (
        "logging.basicConfig(format='%(levelname)s|%(name)s|%(action)s|%(message)s')",
        b"INFO|holdfast|save|begins\nWARNING|holdfast|save|slow\n",
    ),
    "level of the root": ("logging.basicConfig(level=logging.ERROR)", b""),
    "configuration after the first line": (
        "from holdfast.runtime import logs; logs.info('start', 'first');"
        " logging.basicConfig(format='own: %(message)s')",
        b"start: first\nown: begins\nown: slow\n",
    ),
    "silence": ("logging.getLogger('holdfast').setLevel(logging.CRITICAL)", b""),
    "nothing": ("", b"save: begins\nwarning: save: slow\n"),
}


@pytest.mark.parametrize("name", USER_PROGRAMS)
def test_lines_take_form_and_level_from_the_program(name: str) -> None:
    configuration, expected = USER_PROGRAMS[name]
    writer = run_writer(
        f"import logging, sys\n{configuration}\n"
        "from holdfast.runtime import logs\n"
        "logs.info('save', 'begins')\n"
        "logs.warning('save', 'slow')\n"
        "print('data')\n",
        ENVIRONMENT | {"HOLDFAST_JOB": "", "KUBERNETES_SERVICE_HOST": ""},
    )
    assert writer.stdout == b"data\n"
    assert writer.stderr == expected


LOOP = """
import sys, torch
from holdfast.checkpoint import Checkpointer
state = {"model": {"a": torch.zeros(4)}}
with Checkpointer(sys.argv[1], state, run="my-run", every=1000, window_s=90) as ckpt:
    for step in range(ckpt.step + 1, int(sys.argv[2])):
        if step == 3:
            print("ready", flush=True)
            sys.stdin.readline()
        ckpt.tick(step)
"""


@pytest.mark.process
def test_a_script_says_how_it_stopped_and_how_it_ended(tmp_path: Path) -> None:
    variables = ENVIRONMENT | {"HOLDFAST_JOB": "", "RANK": ""}

    def start(steps: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                LOOP,
                str(tmp_path / "store"),
                str(steps),
            ],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    stopped = start(10**9)
    assert stopped.stdout
    assert stopped.stdout.readline() == "ready\n"
    stopped.terminate()
    _, errors = stopped.communicate("\n")
    assert stopped.returncode == 143
    lines = [line for line in errors.splitlines() if line.startswith("stop:")]
    assert re.fullmatch(r"stop: SIGTERM: stopping after step \d+", lines[0])
    assert re.fullmatch(
        r"stop: stopped after step (\d+), exit code 143; the checkpoint of step \1 is"
        r" committed; .*",
        lines[-1],
    )
    resumed = start(int(lines[0].rpartition(" ")[2]) + 3)
    output, errors = resumed.communicate("\n")
    assert resumed.returncode == 0
    assert not [line for line in output.splitlines() if "{" in line]
    assert re.search(
        r"^end: done after step (\d+); the checkpoint of step \1 is committed$", errors, re.M
    )


def test_an_unwritable_log_does_not_stop_the_work() -> None:
    run_writer(
        "import os, sys\nfrom holdfast.runtime import logs\n"
        "os.close(1)\nlogs.info('save', 'x')\nsys.stdout = None\nlogs.info('save', 'y')\n"
    )
