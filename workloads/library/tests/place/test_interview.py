"""`place` without options, as a person at a terminal meets it; off a terminal it must not wait for anybody."""

import os
import pty
import shlex
import subprocess
import sys

import pytest

from holdfast.place.interview import interview


def asked(*texts: str) -> tuple[str, list[str], list[str]]:
    questions: list[str] = []
    written: list[str] = []
    given = iter(texts)

    def read(question: str) -> str:
        questions.append(question)
        return next(given)

    return interview(read, written.append).command(), questions, written


def test_six_questions_make_the_command_that_asks_none() -> None:
    command, questions, written = asked("a100", "8", "40h", "72h", "30s", "us-central1")
    assert len(questions) == 6
    assert not written
    assert shlex.split(command)[3:] == shlex.split(
        "place --gpu a100 --gpus 8 --hours 40h --deadline 72h --checkpoint 30s --region us-central1"
    )


def test_empty_lines_take_the_defaults() -> None:
    command, _, _ = asked("", "", "", "", "", "")
    assert command.endswith("--gpu l4 --gpus 1 --hours 10h --deadline none --checkpoint 30s")


def test_an_answer_that_is_none_is_explained_and_asked_again() -> None:
    command, questions, written = asked("tpu", "h100", "0", "16", "x", "9h", "soon", "none", "30", "queue", "mars", "")
    assert len(questions) == 12
    assert len(written) == 6
    assert "unknown GPU" in written[0]
    assert command.endswith("--gpu h100 --gpus 16 --hours 9h --deadline none --batch")


@pytest.mark.process
def test_in_a_terminal_it_asks_and_answers() -> None:
    pid, fd = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execv(sys.executable, [sys.executable, "-m", "holdfast", "place"])
    os.write(fd, b"l4\n1\n5h\nnone\nqueue\nus-central1\n")
    seen = b""
    while True:
        try:
            chunk = os.read(fd, 4096)
        except OSError:  # Linux ends a terminal whose program has gone so
            break
        if not chunk:
            break
        seen += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen.decode()
    assert b"Which GPU?" in seen
    assert b"holdfast place --gpu l4 --gpus 1 --hours 5h" in seen
    assert b"chosen" in seen


@pytest.mark.process
def test_off_a_terminal_it_fails_instead_of_waiting() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "place"], stdin=subprocess.PIPE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Which GPU" not in done.stdout
    assert "fix:" in done.stderr
