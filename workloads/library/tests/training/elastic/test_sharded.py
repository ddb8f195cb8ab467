"""A gang of a sharded state: lost nodes are waited for, and the ranks go on from the memory of those that are left."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.checkpoint.parts import PeerPlaces
from holdfast.contract.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_ADDRESS,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
)
from holdfast.contract.exit_codes import EXIT_PREEMPTED, EXIT_RETRY
from holdfast.training.elastic.asking import Peers
from holdfast.training.gate import join_key
from tests.support import commits
from workloads.library.tests.fork_server import ForkServer, Started
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import free_run

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CHILD = "workloads.library.tests.training.elastic.sharded_child"
NODES = 3
WAIT_S = 150.0


class ShardedGang:
    """A launcher for each node, with one rank."""

    def __init__(self, folder: Path, server: ForkServer, *, copies: int = 1, **settings: Any) -> None:
        folder.mkdir()
        self.folder, self._server, self._copies = folder, server, copies
        self._port = free_run(2 * NODES)
        self.checkpoints, self.events = folder / "checkpoints", folder / "events.jsonl"
        self.settings = {
            "checkpoints": str(self.checkpoints),
            "events": str(self.events),
            "gate": str(folder / "gate"),
            "gate_step": -1,
            "steps": 24,
            "every": 10,
            "peer_steps": 1,
            **settings,
        }
        self.processes: dict[int, Started] = {}

    def start(self, *places: int) -> None:
        for place in places:
            program = [sys.executable, "-m", CHILD, json.dumps(self.settings)]
            copies = [] if self._copies else ["--copies", "0"]
            options = [
                "--processes",
                "1",
                "--sharded",
                *copies,
                "--checkpoints",
                str(self.checkpoints),
                "--run",
                "sharded",
            ]
            command = [sys.executable, "-m", "holdfast", "train", "ranks", *options, "--wait", "60", "--", *program]
            environment = {
                **os.environ,
                ENV_GANG_NODES: str(NODES),
                ENV_COMPLETION_INDEX: str(place),
                ENV_GANG_PORT: str(self._port),
                ENV_GANG_ADDRESS: "127.0.0.1",
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            with (self.folder / f"log-{place}").open("a") as log:
                self.processes[place] = self._server.start(command, env=environment, out=log, err=log, session=True)

    def lose(self, place: int) -> None:
        """As a machine without power: the launcher, its ranks and their uploaders."""
        whole = psutil.Process(self.processes[place].pid)
        for process in [whole, *whole.children(recursive=True)]:
            process.kill()
        self.processes[place].wait(WAIT_S)

    def all_ended(self) -> list[int]:
        try:
            return [self.processes[place].wait(WAIT_S) for place in range(NODES)]
        except Exception as error:
            raise AssertionError(self.logs()) from error

    def held(self) -> dict[int, list[dict[str, Any]]]:
        """By place what its keeper holds."""
        addresses = tuple(("127.0.0.1", self._port + 2 * place) for place in range(NODES))
        found = Peers(addresses, join_key("sharded")).look([*range(NODES)])
        keepers = tuple(("127.0.0.1", int(found.get(place, {}).get("keeper", 1))) for place in range(NODES))
        return PeerPlaces(run="sharded", epoch=0, place=0, keepers=keepers, ranks_per_node=1, memories=()).held()

    def copied(self, step: int) -> bool:
        """Whether each rank's shard of that step is on the next node too."""
        held = self.held()
        return all(
            any(one["rank"] == place and one["step"] == step for one in held[(place + 1) % NODES])
            for place in range(NODES)
        )

    def until(self, condition: Callable[[], object]) -> None:
        alive = lambda: all(process.poll() is None for process in self.processes.values())  # noqa: E731
        until(condition, self.logs, alive=alive, within_s=WAIT_S, pause_s=0.05)

    def of(self, word: str) -> list[dict[str, Any]]:
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == word]

    @property
    def digest(self) -> str:
        return self.of("exit")[-1]["digest"]

    def open_gate(self) -> None:
        Path(self.settings["gate"]).touch()

    def committed(self) -> bool:
        return bool(commits(self.checkpoints))

    def at_gate(self) -> bool:
        return Path(f"{self.settings['gate']}-reached").exists()

    def shards_in_bucket(self) -> list[Path]:
        return [*self.checkpoints.rglob("*.bin")]

    def logs(self) -> str:
        logs = [f"{path.name}: {path.read_text()[-2500:]}" for path in sorted(self.folder.glob("log-*"))]
        return "\n".join([*logs, *map(str, self.held().items()), *map(str, self.of("restore") + self.of("save"))])

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                whole = psutil.Process(process.pid)
                for each in [whole, *whole.children(recursive=True)]:
                    each.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def launchers() -> Iterator[ForkServer]:
    server = ForkServer(["holdfast.commands", "holdfast.training.elastic.in_place"])
    yield server
    server.close()


Make = Callable[..., ShardedGang]


@pytest.fixture
def make(tmp_path: Path, launchers: ForkServer) -> Iterator[Make]:
    with ExitStack() as made:

        def gang(name: str = "gang", **settings: Any) -> ShardedGang:
            gang = ShardedGang(tmp_path / name, launchers, **settings)
            made.callback(gang.close)
            return gang

        yield gang


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, launchers: ForkServer) -> Iterator[str]:
    gang = ShardedGang(tmp_path_factory.mktemp("undisturbed") / "gang", launchers, copies=0)
    try:
        gang.start(*range(NODES))
        assert gang.all_ended() == [0] * NODES, gang.logs()
        yield gang.digest
    finally:
        gang.close()


def test_a_lost_node_is_replaced_and_the_gang_goes_on_from_memory(make: Make, undisturbed: str) -> None:
    gang = make(gate_step=15)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(15))
    survivors = {place: gang.processes[place].pid for place in (0, 2)}
    gang.lose(1)
    # Not one byte of a shard can come from there: step 10 is committed, and its shards are gone.
    assert gang.shards_in_bucket()
    for shard in gang.shards_in_bucket():
        shard.unlink()
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 15], "no step is lost"
    assert [event["source"] for event in gang.of("restore")] == ["store", "memory"]
    assert gang.digest == undisturbed
    assert all(gang.processes[place].pid == pid for place, pid in survivors.items())


def test_a_noticed_node_loses_no_step_and_the_others_stay(make: Make, undisturbed: str) -> None:
    gang = make(gate_step=15, peer_steps=100, every=1000)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(1) and gang.at_gate())
    gang.processes[1].send_signal(signal.SIGTERM)
    assert gang.processes[1].wait(WAIT_S) == EXIT_PREEMPTED
    assert all(gang.processes[place].poll() is None for place in (0, 2))
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 15]
    assert "restored step 15 of run sharded from the memory of nodes" in (gang.folder / "log-0").read_text()
    assert gang.digest == undisturbed


@pytest.mark.parametrize(
    ("damaged", "restored", "logged"),
    [
        (0, 10, "the memory of nodes cannot be used, reading the store"),  # its neighbour is the node that is lost
        (2, 15, "restored step 15 of run sharded from the memory of nodes"),
    ],
)
def test_a_damaged_memory_is_not_loaded_and_the_gang_goes_on_from_what_is_sound(
    make: Make, undisturbed: str, damaged: int, restored: int, logged: str
) -> None:
    gang = make(gate_step=15)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(15))
    gang.lose(1)
    damage_staging_memories(gang.processes[damaged].pid)
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, restored], gang.logs()
    assert logged in (gang.folder / "log-0").read_text()
    assert gang.digest == undisturbed


def test_a_damaged_memory_before_the_first_commit_ends_the_gang_which_then_begins_clean(
    make: Make, undisturbed: str
) -> None:
    """What was filled in part is not where the run began."""
    gang = make(gate_step=5)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(5))
    gang.lose(1)
    damage_staging_memories(gang.processes[0].pid)
    gang.open_gate()
    gang.start(1)
    assert set(gang.all_ended()) == {EXIT_RETRY}, gang.logs()
    gang.start(*range(NODES))
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 0], gang.logs()
    assert gang.digest == undisturbed


def damage_staging_memories(launcher: int) -> None:
    """One bit of each."""
    links = dict[int, Path]()
    for link in Path(f"/proc/{launcher}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if "holdfast-staging" in str(link.readlink()):
                links[link.stat().st_ino] = link
    for link in links.values():
        if size := link.stat().st_size:
            with link.open("r+b") as memory:
                found = memory.read(size)
                memory.seek(0)
                memory.write(bytes([found[0] ^ 1]))


def test_without_copies_a_lost_node_is_replaced_and_the_bucket_is_read(make: Make, undisturbed: str) -> None:
    gang = make(gate_step=15, copies=0)
    gang.start(*range(NODES))
    gang.until(gang.committed)
    assert not any(gang.held().values())
    gang.lose(2)
    gang.open_gate()
    gang.start(2)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 10]
    assert gang.digest == undisturbed
