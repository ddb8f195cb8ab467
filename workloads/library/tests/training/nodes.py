"""One job on several nodes: agents with a rendezvous over the network, each the first process of
its own pod.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import LOOPBACK, free_ports
from workloads.library.tests.training.runs import PATIENCE_S, Run

Pods = list[Popen[str]]


class Nodes:
    """One job; its nodes share nothing but the network and the storage."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        count: int = 2,
        server: ForkServer | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._shared = folder / "shared"
        self._options = options
        self._patience_s = patience_s
        self.runs: list[Run] = []
        for number in range(count):
            run = Run(
                folder=folder / f"node-{number}",
                ranks=1,
                env={**LOOPBACK},
                server=server,
            )
            self.runs.append(run)
        self._earlier_events = [0] * count
        """The number of events of each node before its newest start."""

    @contextmanager
    def started(self) -> Iterator[Pods]:
        (port,) = free_ports(1)
        self._earlier_events = [len(run.events()) for run in self.runs]
        with ExitStack() as stack:
            pods: Pods = []
            for run in self.runs:
                gang = ("--nodes", str(len(self.runs)), "--rendezvous", f"127.0.0.1:{port}")
                run.options = ("--checkpoints", str(self._shared), *gang, *self._options)
                pods.append(stack.enter_context(run.started()))
            yield pods

    def ended(self, at_step: int, take_down: Callable[[Pods], object]) -> list[int]:
        """Starts all, waits until `at_step` is done, takes down, and returns exit codes as a shell
        shows them.
        """
        with self.started() as pods:
            self.wait_for_step(pods, at_step)
            take_down(pods)
            codes = [pod.wait(PATIENCE_S) for pod in pods]
        return [128 - code if code < 0 else code for code in codes]

    def hold_before(self, step: int) -> None:
        for run in self.runs:
            run.hold_before(step)

    def release(self) -> None:
        for run in self.runs:
            run.release()

    def complete(self) -> list[int]:
        with self.started() as pods:
            return [pod.wait(PATIENCE_S) for pod in pods]

    def wait_for_step(self, pods: Pods, step: int) -> None:
        alive = lambda: all(pod.poll() is None for pod in pods)  # noqa: E731
        until(
            lambda: self.furthest >= step,
            self.log,
            alive=alive,
            within_s=self._patience_s,
        )

    @property
    def furthest(self) -> int:
        """The last step of the newest start: an earlier one may have gone further."""
        furthest = 0
        for run, earlier in zip(self.runs, self._earlier_events, strict=True):
            for event in run.events()[earlier:]:
                if event["event"] == "window":
                    furthest = max(furthest, event["last_step"])
        return furthest

    def log(self) -> str:
        return "\n".join(run.log() for run in self.runs)
