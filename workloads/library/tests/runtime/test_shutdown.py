import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.runtime import drain as drain_hook
from holdfast.runtime import logs, pidfiles
from holdfast.runtime.shutdown import DRAIN_SIGNAL, Shutdown, of_process
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED

TERM = signal.SIGTERM
INT = signal.SIGINT


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def child(body: str) -> subprocess.Popen[str]:
    code = (
        "import os, signal, sys, time, threading\n"
        "from holdfast.runtime import logs, shutdown\n"
        "logs.use_json()\n" + body
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_budget_counts_from_the_first_notice() -> None:
    clock = Clock()
    shutdown = Shutdown(clock=clock)
    shutdown.notice(signal.SIGCHLD)
    assert not shutdown.requested
    assert shutdown.seconds_left(15) == math.inf
    shutdown.notice(TERM)
    clock.now += 4
    shutdown.request("another rank")
    assert shutdown.reason == "SIGTERM"
    assert shutdown.seconds_left(15, margin_s=3) == 8


@pytest.mark.parametrize(
    ("signals", "exits"),
    [
        # A preStop hook that kills, then the kubelet.
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
        # A launcher that forwards Ctrl-C does not count as a second press.
        ([(INT, 0), (TERM, 0.1)], False),
        ([(INT, 0), (TERM, 0.1), (INT, 1.1)], True),
    ],
)
def test_a_second_sigterm_within_the_window_and_a_drain_do_not_count(
    signals: list[tuple[signal.Signals, float]], exits: bool
) -> None:
    codes: list[int] = []
    clock = Clock()
    shutdown = Shutdown(clock=clock, leave=codes.append)
    first = signals[0][0]
    reason = "drain" if first == DRAIN_SIGNAL else first.name
    for signum, second in signals:
        assert codes == []
        clock.now = 100 + second
        shutdown.notice(signum)
        assert shutdown.requested
        assert shutdown.reason == reason
    assert codes == [EXIT_PREEMPTED] * exits


def test_an_immediate_exit_logs_the_loss_and_waits_for_no_log() -> None:
    calls: list[object] = []
    shutdown = Shutdown(clock=Clock(), leave=calls.append)
    shutdown.last_words = lambda: calls.append("the loss")
    shutdown.notice(TERM)
    shutdown.notice(INT)
    assert calls == ["the loss", EXIT_PREEMPTED]
    shutdown.last_words = threading.Event().wait
    shutdown.notice(INT)
    assert calls[1:] == [EXIT_PREEMPTED] * 2


def test_before_the_work_begins_the_first_notice_exits() -> None:
    codes: list[int] = []
    starting = Shutdown(leave=codes.append)
    working = Shutdown(leave=codes.append)
    starting.nothing_at_stake = True
    working.nothing_at_stake = True
    starting.notice(TERM)
    assert codes == [EXIT_PREEMPTED]
    starting.begin()
    assert codes == [EXIT_PREEMPTED] * 2, "the notice came just before"
    working.begin()
    working.notice(TERM)
    assert working.requested
    assert len(codes) == 2


def test_a_delivered_signal_is_known_to_the_next_look() -> None:
    shutdown = of_process()
    interval_s = sys.getswitchinterval()
    # The thread that reads the signal gets the interpreter only if this thread waits for it.
    sys.setswitchinterval(60)
    try:
        os.kill(os.getpid(), TERM)
        assert shutdown.requested
        assert shutdown.reason == "SIGTERM"
    finally:
        sys.setswitchinterval(interval_s)
        shutdown.uninstall()


# A C mutex locked twice never returns to the interpreter, so no handler in Python can run.
LOCKED_IN_C = """
import ctypes
s = shutdown.of_process()
s.takes_s = 12.0
def report():
    s.wait()
    print("noticed", flush=True)
threading.Thread(target=report, daemon=True).start()
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
print("ready", flush=True)
libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.process
def test_ctrl_c_is_answered_and_a_second_one_ends_a_process_in_c_code() -> None:
    process = child(LOCKED_IN_C)
    assert process.stdout is not None
    process.send_signal(INT)
    assert "saved; at most 12 s. Press again to exit at once" in process.stdout.readline()
    assert process.stdout.readline() == "noticed\n"
    # A signal within ECHO_S counts as the launcher's copy of the first press.
    while process.poll() is None:
        process.send_signal(INT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    assert process.returncode == EXIT_PREEMPTED
    process.communicate()


PARENT = """
os.setsid()
s = shutdown.of_process()
reader, writer = os.pipe()
def fork():
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"x")
        time.sleep(600)
    os.read(reader, 1)
    return pid
first, second, third = fork(), fork(), fork()
os.kill(first, signal.SIGTERM)
_, status = os.waitpid(first, 0)
is_requested = s.requested
print("ready", flush=True)
s.wait()
os.waitpid(second, 0)
os.waitpid(third, 0)
print(os.WTERMSIG(status), is_requested, "drained")
"""


@pytest.mark.process
def test_child_signals_never_count_and_a_group_signal_counts_once() -> None:
    process = child(PARENT)
    os.killpg(process.pid, TERM)
    assert process.communicate(timeout=60)[0].split() == [str(int(TERM)), "False", "drained"]
    assert process.returncode == 0


@pytest.mark.process
def test_after_uninstall_signals_end_the_program_again() -> None:
    # Short sleeps: Python sees a signal that comes just before a system call only after that call.
    process = child(
        "shutdown.of_process().uninstall(); print('ready', flush=True)\n"
        "while True: time.sleep(0.02)"
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
    assert process.returncode == 0, "installed again"


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


WORKER = """
s = shutdown.of_process()
print("ready", flush=True)
s.wait()
time.sleep({})
print(s.reason)
"""


@pytest.mark.process
def test_the_drain_hook_stops_all_registered_processes_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path / "roll"))
    hook = drain()
    assert hook.returncode == 3
    assert "no process that handles notices" in hook.stderr
    slow_worker = child(WORKER.format(600))
    hook = drain(window=3.5)
    assert hook.returncode == 1, "it gives up within the window"
    assert str(slow_worker.pid) in hook.stdout
    slow_worker.kill()
    slow_worker.communicate()
    workers = [child(WORKER.format(delay_s)) for delay_s in (0, 0.3)]
    hook = drain()
    assert hook.returncode == 0, hook.stderr
    for worker in workers:
        assert worker.communicate(timeout=60)[0] == "drain\n"


def test_a_reused_pid_is_never_signaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path))
    (tmp_path / f"{os.getpid()}.pid").write_text("born at another time")
    assert pidfiles.list_processes() == []
    assert not list(tmp_path.iterdir())


def test_a_drain_goes_on_after_a_process_that_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    dead = subprocess.Popen(waits)
    dead.kill()
    dead.wait()
    running = subprocess.Popen(waits)
    monkeypatch.setattr(pidfiles, "list_processes", lambda: [dead.pid, running.pid])
    monkeypatch.setattr(logs, "use_json", lambda: None)
    with running:
        try:
            with pytest.raises(SystemExit) as end:
                drain_hook.drain(window=60)
        finally:
            running.send_signal(signal.SIGKILL)
    assert end.value.code == 0
    assert running.returncode == -DRAIN_SIGNAL


def test_a_pidfile_that_vanishes_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path))
    file = tmp_path / "4000000.pid"
    file.write_text("1")

    def end(_pid: int) -> bool:
        file.unlink()
        return True

    monkeypatch.setattr(pidfiles, "is_running", end)
    assert pidfiles.list_processes() == []
