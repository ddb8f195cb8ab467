"""A fleet with faults that drills never cause: roll-outs, freezes, a lost proxy, and common layouts
that must fail.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from holdfast.drill.serving.fleet import Command, Fleet, Replica
from holdfast.manifests.envoy import Proxy
from holdfast.vocabulary.serving import READY_PATH


@dataclass(kw_only=True)
class FieldFleet(Fleet):
    proxy_change: Callable[[Proxy], Proxy] = lambda proxy: proxy
    """Changes the proxy's configuration, for controls that must fail."""
    probe_path: str = READY_PATH
    pre_stop_s: float = 0.0
    """The sleep before SIGTERM of a common layout, in which the pod stays ready."""
    after_pre_stop_s: float = 0.0
    """The time after SIGTERM if the sleep used up the window; 0: the rest of the window."""
    deleted: set[Replica] = field(default_factory=set)
    """Replicas whose endpoints no probe brings back."""

    def deploy(self, command: Command, *, surge: int, unavailable: int) -> None:
        """Replaces all replicas as the controller of a Deployment does, with its two limits.

        At most `surge` replicas more than there were run at a time, without those that leave, and
        at most `unavailable` fewer are ready.
        """
        self.command = command
        old = list(self.replicas)
        size = len(old)
        started = 0

        def may_start() -> bool:
            return started < size and len(old) + started < size + surge

        def may_remove() -> bool:
            return bool(old) and len(self.ready()) > size - unavailable

        while old or started < size:
            self.until(lambda: may_start() or may_remove(), "room for the next replica")
            if may_start():
                self.start()
                started += 1
            else:
                replica = old.pop()
                replica.is_replaced = False
                self.roll_out(replica)
        self.settle()

    def roll_out(self, replica: Replica) -> None:
        """Deletes a pod: its endpoint and the pod begin to go at once."""
        self.deleted.add(replica)
        replica.leaving = True

        def remove() -> None:
            self._closing.wait(self.endpoint_delay_s)
            self._change(replica, False)

        self._run_in_background(remove)
        self._run_in_background(lambda: self._end(replica))

    def freeze(self, replica: Replica, seconds: float) -> None:
        """Silences a server and leaves its connections open, as a machine that hangs does."""
        self._run_in_background(lambda: self._pause(replica.pod.pid, seconds))

    def freeze_model(self, replica: Replica, seconds: float) -> None:
        """Pauses the predicting process alone: a batch hangs in a server that answers."""
        self._run_in_background(lambda: self._pause(self._find_model(replica), seconds))

    def kill_model(self, replica: Replica) -> None:
        os.kill(self._find_model(replica), signal.SIGKILL)

    def _find_model(self, replica: Replica) -> int:
        """Returns the process id of the predictor; waits for a new one if it was just killed."""
        server = psutil.Process(replica.pod.pid)
        # A second one examines requests that were computed at the death of the first.
        self.until(lambda: len(server.children()) == 1, "a single predicting process")
        return server.children()[0].pid

    def _pause(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._closing.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def lose_proxy(self) -> None:
        """Kills the proxy with its requests; another one takes over at another port."""
        self.proxy.kill()
        self.start_proxy()

    def _proxy(self) -> Proxy:
        return self.proxy_change(super()._proxy())

    def _is_ready(self, replica: Replica) -> bool:
        return replica.probe(self.probe_path) and replica not in self.deleted

    def _change(self, replica: Replica, ready: bool) -> None:
        super()._change(replica, ready and replica not in self.deleted)

    def _end(self, replica: Replica) -> None:
        self._closing.wait(self.pre_stop_s)
        code = replica.pod.preempt(self.after_pre_stop_s or self.window_s - self.pre_stop_s)
        with self._lock:
            self.exits.append(code)
        self._replace(replica)
