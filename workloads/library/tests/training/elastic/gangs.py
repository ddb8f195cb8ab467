"""A gang of real processes on this machine: started, killed, frozen and replaced by place."""

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.peer_client import Peers
from holdfast.training.tcp_gate import join_key
from holdfast.vocabulary.environment import ENV_ATTEMPT, ENV_KILL_AT
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from tests.support import commits
from workloads.library.tests.fork_server import ForkServer, Started
from workloads.library.tests.processes import kill_family, until
from workloads.library.tests.training.runs import launch_process

Event = dict[str, Any]
WAIT_S = 150.0
ATTEMPT = "2+1"  # as Kubernetes puts it together
MODEL = {
    "context": 16,
    "width": 16,
    "layers": 1,
    "heads": 2,
}
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Address of the loopback interface: gloo would resolve the host's name."""

CHILD = "workloads.library.tests.training.elastic.child"
HSDP_CHILD = "workloads.library.tests.training.elastic.hsdp_child"


def read_lines(path: Path) -> list[Event]:
    """Returns the whole lines of a file that others append to; none if it does not exist yet."""
    if not path.exists():
        return []
    text, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in text.splitlines()]


class Launched:
    """The processes of a gang, by place, and what they write into its folder."""

    run = ""

    def __init__(self, folder: Path, server: ForkServer | None, settings: dict[str, Any]) -> None:
        """Forks the processes from `server`, or starts them from nothing without one."""
        self.folder = folder
        self._server = server
        self.events = folder / "events.jsonl"
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        files = {
            "checkpoints": self.checkpoints,
            "events": self.events,
            "gate": folder / "gate",
        }
        self.settings: dict[str, Any] = {name: str(path) for name, path in files.items()} | settings
        self.processes: dict[int, subprocess.Popen[str] | Started] = {}

    def launch(self, place: int, command: list[str], **variables: str) -> None:
        environment = os.environ | variables
        with (self.folder / f"log-{place}").open("a") as log:
            self.processes[place] = launch_process(self._server, command, env=environment, log=log)

    def remove_logs(self) -> None:
        """Removes the logs of an earlier start."""
        for log in self.folder.glob("log-*"):
            log.unlink()

    def ended(self, place: int) -> int:
        return self.processes[place].wait(WAIT_S)

    def all_ended(self) -> list[int]:
        """Returns the exit codes of all processes, by place."""
        try:
            return [self.ended(place) for place in sorted(self.processes)]
        except subprocess.TimeoutExpired as error:
            raise AssertionError(self.logs()) from error

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, self.logs, within_s=WAIT_S, pause_s=0.02)

    def of(self, word: str) -> list[Event]:
        """Returns the events of that type."""
        events: list[Event] = []
        for event in read_lines(self.events):
            if event["event"] == word:
                events.append(event)
        return events

    def committed(self) -> bool:
        """Returns the steps committed in the storage: a process at the gate has not noticed yet."""
        return bool(commits(self.checkpoints))

    @property
    def silent_s(self) -> float:
        """Returns the seconds since one of its processes wrote a line."""
        files = (*self.folder.glob("log-*"), *self.folder.glob("*.jsonl"))
        return time.time() - max(path.stat().st_mtime for path in files)

    def logs(self) -> str:
        tails = list[str]()
        for path in sorted(self.folder.glob("log-*")):
            tail = path.read_text()[-2500:]
            tails.append(f"{path.name}: {tail}")
        return "\n".join(tails)

    def read_log(self, place: int) -> str:
        return (self.folder / f"log-{place}").read_text()

    def open_gate(self, step: int | None = None) -> None:
        """Opens the gate of a step, or all gates."""
        (self.folder / ("gate" if step is None else f"gate-{step}")).touch()

    @property
    def addresses(self) -> tuple[Address, ...]:
        raise NotImplementedError

    @cached_property
    def peers(self) -> Peers:
        return Peers(self.addresses, join_key(self.run))

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                kill_family(process.pid)
            process.wait()


class Gang(Launched):
    run = "elastic"

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        server: ForkServer | None = None,
        child: str = CHILD,
        **settings: Any,
    ) -> None:
        defaults = {
            "nodes": [["127.0.0.1", port] for port in free_ports(nodes)],
            "model": MODEL,
            "steps": 40,
            "shards": 6,
            "exact": True,
            "every": 10,
            "gather_s": 60.0,  # a start waits for all places
            "hold_s": 60.0,
            "silent_s": 60.0,
            # a busy machine takes seconds, and a second try would be a size of its own
            "connect_s": 30.0,
            "window_s": 90.0,
            "gate_step": -2,
        }
        super().__init__(folder, server, defaults | settings)
        self.nodes = nodes
        self._child = child

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple((host, port) for host, port in self.settings["nodes"])

    def start(self, *places: int, kill_at: str = "", **changed: Any) -> None:
        """Starts the processes. `changed` holds settings that only these places have."""
        for place in places:
            command = [
                sys.executable,
                "-m",
                self._child,
                json.dumps(
                    {
                        **self.settings,
                        "index": place,
                        **changed,
                    }
                ),
            ]
            self.launch(
                place,
                command,
                **{ENV_KILL_AT: kill_at, ENV_ATTEMPT: ATTEMPT},
                **self.of_place(place),
            )

    def start_node(self, node: int, kill_at: str = "", *, rank: int = -1) -> None:
        """Starts the one process of a node."""
        self.start(node, kill_at=kill_at)

    def list_places(self, node: int) -> Sequence[int]:
        return [node]

    def of_place(self, place: int) -> dict[str, str]:
        """Returns further environment variables of a place's process."""
        return {}

    def signal(self, place: int, number: signal.Signals) -> None:
        self.processes[place].send_signal(number)

    def ends_with(
        self, digest: str, *sizes: int, codes: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Checks that all places complete with these bits, except those with other `codes`.

        `sizes`, if given, are the sizes that the gang had, one after the other.
        """
        expected_codes = []
        for place in sorted(self.processes):
            expected_codes.append(codes.get(place, EXIT_COMPLETE))
        assert self.all_ended() == expected_codes, self.logs()
        assert self.digests() == {digest}, self.logs()
        assert not sizes or self.sizes() == [*sizes], self.logs()

    def compute_digest(self) -> str:
        """Returns the digest of an undisturbed run on one node."""
        self.start_node(0)
        assert {*self.all_ended()} == {EXIT_COMPLETE}, self.logs()
        (digest,) = self.digests()
        return digest

    def digests(self) -> set[str]:
        return {line["digest"] for line in self.of("exit") if "digest" in line}

    def sizes(self) -> list[int]:
        return [line["nodes"] for line in self.of("resized")]

    def at_gate(self, step: int, *places: int) -> bool:
        """Returns whether these places wait at the gate of that step: none is in a collective."""
        gate = self.settings["gate"]
        return all(Path(f"{gate}-{step}-{place}").exists() for place in places)

    def joining(self, place: int, lead: int = 0) -> bool:
        """Returns whether the lead knows that this place asks to join: it admits it at the next
        step.
        """
        return place in self.peers.look([lead]).get(lead, {}).get("joining", ())

    def has_come(self, place: int, lead: int = 0) -> bool:
        """Returns whether this place asks to join, or the gang has grown: a place that asks before
        the others are at the gate is taken in at once.
        """
        sizes = self.sizes()
        has_grown = len(sizes) > 1 and sizes[-1] > sizes[-2]
        return has_grown or self.joining(place, lead)


class Commits:
    """Commits of a run, noted while it runs, as retention deletes them."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._found: dict[tuple[str, int], tuple[int, int]] = {}
        """Number of the start that wrote a commit and the time at which it appeared, by the step
        and the time of its draft; in the order in which they were seen.
        """

    def note(self) -> None:
        new: list[tuple[int, int, tuple[str, int]]] = []
        with suppress(FileNotFoundError):  # retention was faster
            for commit in self._checkpoints.glob("*/step-*/COMMIT.json"):
                status = commit.stat()
                key = (commit.parent.name, status.st_mtime_ns)
                if key not in self._found:
                    start = int(json.loads(commit.read_bytes())["body"]["epoch"])
                    new.append((status.st_ctime_ns, start, key))
        for appeared_ns, start, key in sorted(new):
            self._found[key] = (start, appeared_ns)

    @property
    def newest_start(self) -> int:
        self.note()
        return max((start for start, _ in self._found.values()), default=0)

    def of_zombies(self) -> list[str]:
        """Returns commits of a fenced process: its number is lower than that of a commit that
        appeared before it.
        """
        # Not by the time of the file: a commit that is moved late has that of its draft.
        messages = list[str]()
        newest_start = 0
        newest_ns = 0
        for (step, _), (start, appeared_ns) in self._found.items():
            if start > newest_start:
                newest_start = start
                newest_ns = appeared_ns
            elif start < newest_start and appeared_ns > newest_ns:
                messages.append(
                    f"{step} was committed by start {start} after a commit of start {newest_start}"
                )
        return messages


def free_ports(count: int) -> list[int]:
    """Returns ports with a free one above each, none of which the kernel gives to a connection."""
    return [free_run(2) for _ in range(count)]


def ranks(count: int) -> list[dict[str, str]]:
    """Returns the variables that torchrun sets for each of `count` ranks of one machine."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_run(2)),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        **LOOPBACK,
    }
    environments = list[dict[str, str]]()
    for rank in range(count):
        variables = {
            **common,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        environments.append(variables)
    return environments


def free_run(count: int) -> int:
    """Returns the first of `count` consecutive ports, reserved for this process."""
    while True:
        first = _random.randrange(10_000, 30_000, 2)
        if _claim(first, count):
            return first


_random = random.SystemRandom()  # a test that seeds `random` would choose the same ports as another
_claims = ExitStack()
atexit.register(_claims.close)
"""UDP sockets with the same port numbers. A TCP port that is free now may be taken later; one that
is reserved in this way may not: until this process ends, no other test process finds it free.
"""


def _claim(first: int, count: int) -> bool:
    """Reserves the ports. Returns whether all were free."""
    with ExitStack() as claims, suppress(OSError):
        for port in range(first, first + count):
            claims.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("", port))
            with socket.socket() as trial:
                trial.bind(("", port))
        _claims.push(claims.pop_all())
        return True
    return False
