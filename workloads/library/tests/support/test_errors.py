"""Tests how a command ends: users can fix bad input and missing services, all else is a bug."""

import os
import subprocess
import sys

import pytest

from holdfast.vocabulary.environment import ENV_JOB, ENV_TRACEBACK

pytestmark = pytest.mark.process

PROGRAM = """
import pathlib, sys
from holdfast.support.errors import InputError, Unjudged, run_cli
def main():
    for number in range(100_000):
        print(number)
    {body}
run_cli(main)
"""


def run_program(body: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    variables = {}
    for name, value in os.environ.items():
        if name not in (ENV_JOB, ENV_TRACEBACK):
            variables[name] = value
    return subprocess.run(
        command,
        env=variables | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("raise InputError('x', got=1, allowed='2', fix='3')", 2, "error:   x"),
        ("raise Unjudged('no cluster')", 3, "could not judge: no cluster"),
        ("open('x' * 5_000)", 2, "error:   the path cannot be used"),
        (
            "pathlib.Path('/proc/no/such').mkdir(parents=True)",
            2,
            "error:   the path cannot be used",
        ),
        ("pathlib.Path('/dev/null').mkdir(exist_ok=True)", 2, "error:   the path cannot be used"),
        ("raise OSError(28, 'No space left on device')", 75, "error:   the disk is full"),
        (
            (
                "from holdfast.support.errors import Later; raise Later('x', got=1, allowed='2',"
                " fix='3')"
            ),
            75,
            "error:   x",
        ),
        (
            "open('/no/such')",
            70,
            (
                "internal error: FileNotFoundError: [Errno 2] No such file or directory: '/no/such'"
                " (<string>, line 7)"
            ),
        ),
        (
            "raise ValueError('one\\ntwo')",
            70,
            "internal error: ValueError: one two (<string>, line 7)",
        ),
        ("sys.exit(1)", 1, ""),
    ],
)
def test_only_findings_exit_1(body: str, code: int, line: str) -> None:
    process = run_program(body)
    assert process.returncode == code
    assert "Traceback" not in process.stderr
    assert process.stderr.startswith(line)
    if code == 70:
        head, advice = process.stderr.splitlines()
        assert head == line
        assert "issue tracker" in advice
        assert f"{ENV_TRACEBACK}=1" in advice


@pytest.mark.parametrize("variable", [ENV_TRACEBACK, ENV_JOB])
def test_a_bug_prints_its_traceback_in_a_pod_or_on_request(variable: str) -> None:
    process = run_program("raise KeyError('step')", **{variable: "1"})
    assert process.returncode == 70
    assert "Traceback (most recent call last)" in process.stderr
    assert process.stderr.splitlines()[-2].startswith("internal error: KeyError: 'step'")


def test_a_closed_pipe_is_no_bug() -> None:
    assert_read_in_part(PROGRAM.format(body="pass"))


def assert_read_in_part(program: str) -> None:
    """Closes the output after the first line, `0`: the program ends well and silently."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline() == "0\n"
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(60) == 0


def test_quoted_text_cannot_control_the_terminal_or_the_ci() -> None:
    loud = "a\n::error::b\x1b[2J##[error]c\u202e"
    process = run_program(
        f"raise InputError({loud!r}, got={loud!r}, allowed={loud!r}, fix={loud!r})"
    )
    labels = ("error:", "got:", "allowed:", "fix:")
    for label, line in zip(labels, process.stderr.splitlines(), strict=True):
        assert line.strip().startswith(label)
        assert line.isprintable()
        assert "##[" not in line


def test_a_command_without_peers_loses_none() -> None:
    process = run_program("raise RuntimeError('Connection closed by peer')")
    assert process.returncode == 70
    assert "a bug in holdfast" in process.stderr
