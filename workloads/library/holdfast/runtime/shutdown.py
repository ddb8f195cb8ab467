"""The notice to leave: the first signal asks to drain; Ctrl-C again, or SIGTERM after the window,
leaves at once.

Guarantees:
- a signal is noticed while the main thread sits in C code (a collective, a compile, a database call),
  because the interpreter's C handler writes to a pipe that our own thread reads;
- nothing of the program runs inside a signal handler, so no lock can be held twice;
- a forked child (DataLoader worker) never reports its own signals as ours.
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

# Counted: the kubelet, torchrun and a terminal send these.
NOTICES = (signal.SIGTERM, signal.SIGINT)
# Asks for the same stop without counting: the kubelet's SIGTERM after a preStop drain is still the
# first.
DRAIN_SIGNAL = signal.SIGUSR1
# Ctrl-C reaches every process of a terminal, and then a launcher passes its own copy on: one press,
# two signals. Copies come within milliseconds. A person who reads the answer to the first press
# takes longer. Only SIGINT starts this time: a kubelet's SIGTERM has no copy. A copy that a busy
# machine delays longer counts as the second press: the process exits with 143, the upload in flight
# goes on in its own session, and the steps since the last checkpoint are lost.
ECHO_S = 0.5
LAST_S = 0.5  # out of the margin


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
        self._signals = 0
        self._notices: list[tuple[float, float | None]] = []
        """When, and how long from then; None for the window that the asker has in mind."""
        self.nothing_at_stake = False
        """While true, the first notice leaves at once: a start that has not begun its work."""
        self.takes_s = float(DEFAULT_WINDOW.pod_s)
        """How long a clean exit may take, for the person who pressed Ctrl-C."""
        self.last_words: Callable[[], object] = lambda: None
        """Says what is lost, before this process leaves without its main thread. It may take
        LAST_S.
        """
        self.announces = True
        """Whether this process answers Ctrl-C with a line; of a job, one process does."""
        self._interrupted_at = -math.inf
        self._taken: dict[signal.Signals, Any] = {}
        self._wakeup: tuple[int, int] | None = None
        """Our end of the pipe, and the one that the interpreter wrote to before."""
        self.received_at: float | None = None
        """Monotonic time of the first notice."""
        self.reason = ""

    @property
    def requested(self) -> bool:
        return self._asked.is_set()

    def request(self, reason: str, *, window_s: float | None = None) -> None:
        """Ask for the stop without a signal: a deadline, another rank, a drain. A planned end
        brings its own window; a later notice can only shorten it.
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
        """From here on a notice leads to a clean exit; one that came just before ends the process."""
        self.nothing_at_stake = False
        if self.requested:
            self._leave(EXIT_PREEMPTED)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until a stop is requested or `timeout_s` has passed; true in the first case."""
        return self._asked.wait(timeout_s)

    def seconds_left(self, window_s: float, margin_s: float = WINDOW_MARGIN_S) -> float:
        """What remains of the window, less what leaving costs; infinite before the notice."""
        ends = [at + (window_s if own is None else own) for at, own in self._notices]
        return min(ends, default=math.inf) - margin_s - self._clock()

    def notice(self, signum: int) -> None:
        """One delivered signal."""
        if signum == DRAIN_SIGNAL:
            self.request("drain")
            return
        if signum not in NOTICES:
            return
        if self._signals and self._clock() - self._interrupted_at < ECHO_S:
            return
        self._signals += 1
        if self._signals > 1:
            self._again(signum)
            return
        if signum == signal.SIGINT:
            self._interrupted_at = self._clock()
            self._announce()
        self.request(signal.Signals(signum).name)

    def _again(self, signum: int) -> None:
        """A person who presses again wants to leave. A second SIGTERM within the window is the
        kubelet's, behind a preStop that has sent one: the stop, and its last save, go on.
        """
        began = self.received_at if self.received_at is not None else -math.inf
        if signum == signal.SIGTERM and self._clock() - began < self.takes_s:
            logs.info("stop", "another SIGTERM: the stop goes on")
            return
        logs.warning("stop", "leaving at once, as a second signal requests")
        self._depart()

    def _depart(self) -> None:
        # A log whose reader hangs must not keep the process.
        last = threading.Thread(
            target=self.last_words,
            name="last-words",
            daemon=True,
        )
        last.start()
        last.join(LAST_S)
        self._leave(EXIT_PREEMPTED)

    def _announce(self) -> None:
        then = "leaving at once, no step has begun"
        if not self.nothing_at_stake:
            bound = f"at most {self.takes_s:.0f} s. Press again to leave at once"
            then = f"the step in progress ends, then what fits is saved; {bound}"
        if self.announces:
            logs.warning("stop", f"Ctrl-C: {then}")

    def leave_after(self, window_s: float) -> None:
        """Leave when the window closes, whatever then hangs: a collective, an upload, a destructor."""
        self.takes_s = window_s

        def enforce() -> None:
            self.wait()
            while (left := self.seconds_left(window_s)) > 0:
                time.sleep(min(left, 0.2))  # a later notice may shorten it
            self._depart()

        threading.Thread(
            target=enforce,
            name="window-end",
            daemon=True,
        ).start()

    def install(self) -> Self:
        """Take over the signals of this process, once. Raises InputError outside the main thread."""
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
        self._taken = {signum: signal.getsignal(signum) for signum in (*NOTICES, DRAIN_SIGNAL)}
        self.take_signals()
        self._wakeup = (writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
        os.register_at_fork(after_in_child=_give_back_signals)
        threading.Thread(
            target=self._read,
            args=(reader,),
            name="shutdown",
            daemon=True,
        ).start()
        pidfiles.register()
        return self

    def uninstall(self) -> None:
        """Give the signals back to their former handlers: behind the work, Ctrl-C has to end the
        program again.
        """
        if self._wakeup is None or threading.current_thread() is not threading.main_thread():
            return
        writer, before = self._wakeup
        self._wakeup = None
        signal.set_wakeup_fd(before)
        for signum, handler in self._taken.items():
            # None: set by C code, unknown here
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        os.close(writer)  # ends the reading thread
        pidfiles.unregister()  # or a drain would kill the process
        of_process.cache_clear()

    def take_signals(self) -> None:
        """From code that has set handlers since; only from the main thread."""
        for signum in (*NOTICES, DRAIN_SIGNAL):
            signal.signal(signum, _nothing)

    def _read(self, reader: int) -> None:
        while numbers := os.read(reader, 64):
            for signum in numbers:
                self.notice(signum)
        os.close(reader)


@cache
def of_process() -> Shutdown:
    """The one Shutdown of this process, installed on first use (from the main thread)."""
    return Shutdown().install()


def installed() -> bool:
    """Whether this process has its Shutdown already."""
    return bool(of_process.cache_info().currsize)


def _nothing(signum: int, frame: FrameType | None) -> None:
    """A handler must exist for the C handler to write to the pipe."""


def _give_back_signals() -> None:
    # A child shares the pipe: killpg reaches parent and children, and the parent would count each
    # of them. Default handlers, so that Process.terminate() on a child works as its author expects;
    # a child that wants the notice for itself asks of_process() again.
    if not installed():
        return  # given back before: the handlers are the program's own
    of_process.cache_clear()
    if threading.current_thread() is not threading.main_thread():
        return
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, DRAIN_SIGNAL):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def leave_now(code: int) -> None:
    """Leave without running anything that could hang: flush what was printed, then go."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
