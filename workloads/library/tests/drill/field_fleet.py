"""A fleet with what drills never do: roll-outs, freezes, a lost proxy, and layouts of the field
that must fail.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from holdfast.drill.serving.fleet import Fleet, Replica
from holdfast.manifests.envoy import Proxy
from holdfast.vocabulary.serving import READY_PATH


@dataclass(kw_only=True)
class FieldFleet(Fleet):
    proxy_change: Callable[[Proxy], Proxy] = lambda proxy: proxy
    """For controls that must fail."""
    probe_path: str = READY_PATH
    pre_stop_s: float = 0.0
    """The layout of the field: a sleep before SIGTERM, in which the pod stays ready."""
    after_pre_stop_s: float = 0.0
    """What the kubelet leaves after SIGTERM when a sleep has eaten the window; 0: the rest of the
    window.
    """
    deleted: set[Replica] = field(default_factory=set[Replica])
    """No probe brings their endpoints back."""

    def roll_out(self, replica: Replica) -> None:
        """Deleted: its endpoint is on its way out at once, and so is the pod."""
        self.deleted.add(replica)
        replica.leaving = True

        def remove() -> None:
            self._ended.wait(self.endpoint_delay_s)
            self._change(replica, False)

        self._in_background(remove)
        self._in_background(lambda: self._end(replica))

    def freeze(self, replica: Replica, seconds: float) -> None:
        """Silent for a while, connections open: as a machine that hangs, or whose network is gone."""

        self._in_background(lambda: self._hold(replica.pod.pid, seconds))

    def freeze_model(self, replica: Replica, seconds: float) -> None:
        """The predicting process alone: a batch that hangs, in a server that answers."""
        self._in_background(lambda: self._hold(self._model(replica), seconds))

    def kill_model(self, replica: Replica) -> None:
        os.kill(self._model(replica), signal.SIGKILL)

    def _model(self, replica: Replica) -> int:
        """Its only process; waited for where it was just killed."""
        found = list[psutil.Process]()
        self.until(
            lambda: found.extend(psutil.Process(replica.pod.pid).children()) or found,
            "a predicting process",
        )
        return found[-1].pid

    def _hold(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._ended.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def lose_proxy(self) -> None:
        """Killed, with every request in it; another one takes over at another port."""
        self.proxy.kill()
        self.start_proxy()

    def _proxy(self) -> Proxy:
        return self.proxy_change(super()._proxy())

    def _is_ready(self, replica: Replica) -> bool:
        return replica.probe(self.probe_path) and replica not in self.deleted

    def _change(self, replica: Replica, ready: bool) -> None:
        super()._change(replica, ready and replica not in self.deleted)

    def _end(self, replica: Replica) -> None:
        self._ended.wait(self.pre_stop_s)
        code = replica.pod.preempt(self.after_pre_stop_s or self.window_s - self.pre_stop_s)
        with self._lock:
            self.exits.append(code)
        self._replace(replica)
