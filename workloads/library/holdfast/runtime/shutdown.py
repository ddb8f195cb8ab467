"""The shutdown of a process: the first signal starts a drain, a further one may exit at once.

Ctrl-C a second time exits, and so does SIGTERM after the window. Guarantees:
- A signal is noticed while the main thread is in C code (a collective, a compile, a database
  call), because the interpreter's C handler writes to a pipe that a thread of the library reads.
- The handler of a signal only sets a flag: it takes no lock that its thread may hold.
- A loop that looks after a signal sees it, however late the thread that reads the pipe runs.
- A forked child (DataLoader worker) never reports its own signals as ours.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, Self

from holdfast.runtime import logs, pidfiles
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

# Signals that count: the kubelet, torchrun and a terminal send these.
NOTICES = (signal.SIGTERM, signal.SIGINT)
# Requests the same stop and does not count: the kubelet's SIGTERM after a preStop drain is still
# the first signal.
DRAIN_SIGNAL = signal.SIGUSR1
# Ctrl-C reaches every process of a terminal, and a launcher forwards its own copy: one press, two
# signals. Copies come within milliseconds; a person who reads the answer to the first press takes
# longer. Only SIGINT starts this time, as the kubelet's SIGTERM has no copy. If a busy machine
# delays a copy longer, it counts as the second press: the process exits with 143, the upload in
# flight continues in its own session, and the steps since the last checkpoint are lost.
ECHO_S = 0.5
LAST_S = 0.5  # part of the margin
# The thread that reads a delivered signal needs microseconds, or longer on a starved machine.
READ_S = 2.0


class Shutdown:
    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._clock = clock
        self._leave = leave
        self._asked = threading.Event()
        self._is_delivered = False
        """True once the main thread has received a signal, which another thread reads."""
        self._handler = self._deliver
        self._signals = 0
        self._notices: list[tuple[float, float | None]] = []
        """Times of notices with their windows; None for the window that the caller passes later."""
        self.nothing_at_stake = False
        """True before the work begins: the first notice then exits at once."""
        self.takes_s = float(DEFAULT_WINDOW.pod_s)
        """The maximum time of a clean exit, which is shown after Ctrl-C."""
        self.last_words: Callable[[], object] = lambda: None
        """A function that logs what is lost, called before an exit without the main thread.

        It may take LAST_S.
        """
        self.announces = True
        """True if this process answers Ctrl-C with a line; one process of a job does."""
        self._interrupted_at = -math.inf
        self._former_handlers: dict[signal.Signals, Any] = {}
        self._wakeup: tuple[int, int] | None = None
        """The descriptors that the interpreter writes to now, and wrote to before."""
        self.received_at: float | None = None
        """The monotonic time of the first notice."""
        self.reason = ""

    @property
    def requested(self) -> bool:
        # Short steps must not outrun the thread that reads the signal: a whole run could end as
        # complete after its notice.
        if self._is_delivered and not self._asked.is_set():
            self._is_delivered = self._asked.wait(READ_S)
        return self._asked.is_set()

    def request(self, reason: str, *, window_s: float | None = None) -> None:
        """Requests the stop without a signal, for a deadline, another rank or a drain.

        A planned end has its own window, which later notices can only shorten.
        """
        now = self._clock()
        self._notices.append((now, window_s))
        if not self._asked.is_set():
            self.received_at = now
            self.reason = reason
            self._asked.set()
            if self.nothing_at_stake:
                self._leave(EXIT_PREEMPTED)

    def begin(self) -> None:
        """Starts the work: notices now lead to a clean exit. Exits if one came before."""
        self.nothing_at_stake = False
        if self.requested:
            self._leave(EXIT_PREEMPTED)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for a stop request, at most `timeout_s`; returns True if there is one."""
        return self._asked.wait(timeout_s)

    def seconds_left(self, window_s: float, margin_s: float = WINDOW_MARGIN_S) -> float:
        """Returns the rest of the window, less the cost of an exit; infinite before the notice."""
        ends: list[float] = []
        for notice_time, notice_window_s in self._notices:
            ends.append(notice_time + (window_s if notice_window_s is None else notice_window_s))
        return min(ends, default=math.inf) - margin_s - self._clock()

    def notice(self, signum: int) -> None:
        """Handles one delivered signal."""
        if signum == DRAIN_SIGNAL:
            self.request("drain")
            return
        if signum not in NOTICES:
            return
        if self._signals and self._clock() - self._interrupted_at < ECHO_S:
            return
        self._signals += 1
        if self._signals > 1:
            self._handle_repeat(signum)
            return
        if signum == signal.SIGINT:
            self._interrupted_at = self._clock()
            self._announce()
        self.request(signal.Signals(signum).name)

    def _handle_repeat(self, signum: int) -> None:
        """Exits at once, except for a second SIGTERM within the window.

        That one is the kubelet's, after a preStop hook that sent one: the stop and its last save
        continue. A person who presses Ctrl-C again wants to exit.
        """
        start = self.received_at if self.received_at is not None else -math.inf
        if signum == signal.SIGTERM and self._clock() - start < self.takes_s:
            logs.info("stop", "another SIGTERM: the stop continues")
            return
        logs.warning("stop", "exiting at once, because of a second signal")
        self._exit_now()

    def _exit_now(self) -> None:
        # A log whose reader hangs must not keep the process.
        thread = threading.Thread(target=self.last_words, name="last-words", daemon=True)
        thread.start()
        thread.join(LAST_S)
        self._leave(EXIT_PREEMPTED)

    def _announce(self) -> None:
        if not self.announces:
            return
        if self.nothing_at_stake:
            logs.warning("stop", "Ctrl-C: exiting at once, no step has begun")
            return
        logs.warning(
            "stop",
            "Ctrl-C: the step in progress ends, then what fits is saved;"
            f" at most {self.takes_s:.0f} s. Press again to exit at once",
        )

    def leave_after(self, window_s: float) -> None:
        """Exits when the window ends, even if a collective, upload or destructor hangs."""
        self.takes_s = window_s

        def enforce() -> None:
            self.wait()
            rest_s = self.seconds_left(window_s)
            while rest_s > 0:
                time.sleep(min(rest_s, 0.2))  # a later notice may shorten it
                rest_s = self.seconds_left(window_s)
            self._exit_now()

        threading.Thread(target=enforce, name="window-end", daemon=True).start()

    def install(self) -> Self:
        """Takes over the signals of this process. Raises InputError outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise InputError(
                "signals can only be handled in the main thread",
                got=f"thread {threading.current_thread().name}",
                allowed="a program whose main thread has taken them, or the main thread itself",
                fix=(
                    "call holdfast.runtime.shutdown.of_process() in the main thread, before this"
                    " thread starts"
                ),
            )
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # required by set_wakeup_fd
        for signum in (*NOTICES, DRAIN_SIGNAL):
            self._former_handlers[signum] = signal.getsignal(signum)
        self.take_signals()
        former_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wakeup = (writer, former_writer)
        os.register_at_fork(after_in_child=_restore_defaults)
        threading.Thread(
            target=self._watch_signals,
            args=(reader,),
            name="shutdown",
            daemon=True,
        ).start()
        pidfiles.register()
        return self

    def uninstall(self) -> None:
        """Restores the former handlers: after the work, Ctrl-C has to end the program again."""
        if self._wakeup is None or threading.current_thread() is not threading.main_thread():
            return
        writer, former_writer = self._wakeup
        self._wakeup = None
        signal.set_wakeup_fd(former_writer)
        for signum, handler in self._former_handlers.items():
            # None is a handler that C code has set.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        os.close(writer)  # ends the reading thread
        pidfiles.unregister()  # otherwise a drain would kill the process
        of_process.cache_clear()

    def take_signals(self) -> None:
        """Sets our handlers, again if other code has replaced them; only in the main thread."""
        for signum in (*NOTICES, DRAIN_SIGNAL):
            signal.signal(signum, self._handler)

    def _deliver(self, signum: int, frame: FrameType | None) -> None:
        """Notes that a signal came. Without a Python handler nothing is written to the pipe."""
        self._is_delivered = True

    def _watch_signals(self, reader: int) -> None:
        while signums := os.read(reader, 64):
            for signum in signums:
                self.notice(signum)
        os.close(reader)


@cache
def of_process() -> Shutdown:
    """Returns the Shutdown of this process; the first call installs it, in the main thread."""
    return Shutdown().install()


def is_installed() -> bool:
    """Returns True if this process has installed its Shutdown."""
    return bool(of_process.cache_info().currsize)


def _restore_defaults() -> None:
    """Restores the default handlers in a forked child.

    The child shares the pipe: killpg reaches parent and children, and the parent would count each
    signal. With default handlers Process.terminate() works on a child as usual. A child that needs
    notices calls of_process() again.
    """
    if not is_installed():
        return  # uninstalled before: the handlers are the program's own
    of_process.cache_clear()
    if threading.current_thread() is not threading.main_thread():
        return
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, DRAIN_SIGNAL):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def leave_now(code: int) -> None:
    """Exits without exit handlers, which could hang; flushes what was printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
