import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.runtime import pidfiles
from holdfast.runtime.shutdown import DRAIN_SIGNAL, Shutdown
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED

TERM = signal.SIGTERM
INT = signal.SIGINT


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def child(body: str) -> subprocess.Popen[str]:
    code = "import os, signal, sys, time, threading\nfrom holdfast.runtime import shutdown\n" + body
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_the_budget_counts_from_the_first_notice() -> None:
    clock = Clock()
    down = Shutdown(clock=clock)
    down.notice(signal.SIGCHLD)
    assert not down.requested and down.seconds_left(15) == math.inf
    down.notice(TERM)
    clock.now += 4
    down.request("another rank")
    assert down.reason == "SIGTERM"
    assert down.seconds_left(15, margin_s=3) == 8


@pytest.mark.parametrize(
    ("heard", "leaves"),
    [
        # a preStop that kills, and then the kubelet
        (
            [
                (DRAIN_SIGNAL, 0),
                (TERM, 0),
                (TERM, 5),
                (TERM, 9.9),
            ],
            False,
        ),
        ([(DRAIN_SIGNAL, 0), (TERM, 0), (TERM, 15.1)], True),
        ([(TERM, 0), (INT, 0)], True),
        # a launcher that passes Ctrl-C on does not press it twice
        ([(INT, 0), (TERM, 0.1)], False),
        ([(INT, 0), (TERM, 0.1), (INT, 1.1)], True),
    ],
)
def test_a_second_sigterm_within_the_window_changes_nothing_and_a_drain_does_not_count(
    heard: list[tuple[signal.Signals, float]], leaves: bool
) -> None:
    left: list[int] = []
    clock = Clock()
    down = Shutdown(clock=clock, leave=left.append)
    for signum, at in heard:
        assert left == []
        clock.now = 100 + at
        down.notice(signum)
        assert down.requested and down.reason == (
            "drain" if heard[0][0] == DRAIN_SIGNAL else heard[0][0].name
        )
    assert left == [EXIT_PREEMPTED] * leaves


def test_who_leaves_at_once_says_what_is_lost_and_what_hangs_in_it_keeps_nobody() -> None:
    heard: list[object] = []
    down = Shutdown(clock=Clock(), leave=heard.append)
    down.last_words = lambda: heard.append("what is lost")
    down.notice(TERM)
    down.notice(INT)
    assert heard == ["what is lost", EXIT_PREEMPTED]
    down.last_words = threading.Event().wait
    down.notice(INT)
    assert heard[1:] == [EXIT_PREEMPTED] * 2


def test_where_nothing_is_at_stake_the_first_notice_leaves_until_the_work_begins() -> None:
    left: list[int] = []
    starting = Shutdown(leave=left.append)
    working = Shutdown(leave=left.append)
    starting.nothing_at_stake = working.nothing_at_stake = True
    starting.notice(TERM)
    assert left == [EXIT_PREEMPTED]
    starting.begin()
    assert left == [EXIT_PREEMPTED] * 2, "one that came just before the beginning"
    working.begin()
    working.notice(TERM)
    assert working.requested and len(left) == 2


@pytest.mark.process
def test_ctrl_c_is_answered_and_the_second_ends_a_process_whose_main_thread_sits_in_c_code() -> (
    None
):
    # A C mutex locked twice never returns to the interpreter, so no Python-level handler gets to
    # run.
    process = child(
        "import ctypes\ns = shutdown.of_process(); s.takes_s ="
        " 12.0\nthreading.Thread(target=lambda: (s.wait(), print('noticed', flush=True)),"
        " daemon=True).start()\nlibc = ctypes.CDLL(None)\nmutex ="
        " ctypes.create_string_buffer(64)\nlibc.pthread_mutex_lock(mutex)\nprint('ready',"
        " flush=True)\nlibc.pthread_mutex_lock(mutex)\n"
    )
    assert process.stdout is not None
    process.send_signal(INT)
    assert "saved; at most 12 s. Press again to leave at once" in process.stdout.readline()
    assert process.stdout.readline() == "noticed\n"
    # what comes within ECHO_S is the launcher's copy of the first press
    while process.poll() is None:
        process.send_signal(INT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    assert process.returncode == EXIT_PREEMPTED
    process.communicate()


@pytest.mark.process
def test_signals_of_forked_children_never_count_and_a_group_wide_one_is_one_notice() -> None:
    process = child(
        "os.setsid()\ns = shutdown.of_process()\nr, w = os.pipe()\ndef forked():\n    pid ="
        " os.fork()\n    if pid == 0:\n        os.write(w, b'x'); time.sleep(600)\n    os.read(r,"
        " 1)\n    return pid\nfirst, *others = [forked() for _ in range(3)]\nos.kill(first,"
        " signal.SIGTERM)\nended = os.WTERMSIG(os.waitpid(first, 0)[1])\nalone ="
        " s.requested\nprint('ready', flush=True)\ns.wait()\n[os.waitpid(pid, 0) for pid in"
        " others]\nprint(ended, alone, 'drained')"
    )
    os.killpg(process.pid, TERM)
    assert process.communicate(timeout=60)[0].split() == [str(int(TERM)), "False", "drained"]
    assert process.returncode == 0


@pytest.mark.process
def test_signals_that_are_given_back_end_the_program_again() -> None:
    process = child(
        "shutdown.of_process().uninstall(); print('ready', flush=True); time.sleep(600)"
    )
    process.send_signal(INT)
    process.communicate(timeout=60)
    assert process.returncode == -INT, "as Python ends on KeyboardInterrupt"
    process = child(
        "shutdown.of_process().uninstall(); s = shutdown.of_process(); print('ready', flush=True);"
        " s.wait()"
    )
    process.send_signal(TERM)
    process.communicate(timeout=60)
    assert process.returncode == 0, "taken again"


def drain(window: float = 15) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "holdfast.runtime.drain",
        "--window",
        str(window),
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_the_hook_stops_every_process_that_takes_notices_or_says_that_none_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path / "roll"))
    none = drain()
    assert none.returncode == 3 and "no process that handles notices" in none.stderr
    worker = (
        "s = shutdown.of_process(); print('ready', flush=True); s.wait(); time.sleep({});"
        " print(s.reason)"
    )
    slow = child(worker.format(600))
    late = drain(window=3.5)
    assert late.returncode == 1 and str(slow.pid) in late.stdout, "it gives up inside the window"
    slow.kill()
    slow.communicate()
    workers = [child(worker.format(after_s)) for after_s in (0, 0.3)]
    done = drain()
    assert done.returncode == 0, done.stderr
    assert [w.communicate(timeout=60)[0] for w in workers] == ["drain\n", "drain\n"]


def test_a_reused_pid_is_never_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path))
    (tmp_path / f"{os.getpid()}.pid").write_text("born at another time")
    assert pidfiles.registered() == []
    assert not list(tmp_path.iterdir())
