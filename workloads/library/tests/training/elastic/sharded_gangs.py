"""A gang of a sharded state: a launcher with one rank for each node, started, lost and looked into
by place.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.format import Manifest, Shard
from holdfast.checkpoint.peers import PeerPlaces
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.training.gang.member_addresses import Address
from holdfast.vocabulary.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_ADDRESS,
    ENV_GANG_DOMAIN,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_KILL_AT,
)
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import kill_family
from workloads.library.tests.training.elastic.gangs import LOOPBACK, Launched, free_run, read_lines

CHILD = "workloads.library.tests.training.elastic.sharded_child"


class ShardedGang(Launched):
    """A launcher for each node, with `processes` ranks."""

    run = "sharded"

    def __init__(
        self,
        folder: Path,
        server: ForkServer | None,
        *,
        nodes: int,
        processes: int = 1,
        copies: int = 1,
        child: str = CHILD,
        module: str = "holdfast",
        wait_s: float = 60.0,
        min_nodes: int = 0,
        window_s: float = 0.0,
        env: Mapping[str, str] | None = None,
        domains: Sequence[str] = (),
        copies_folder: str = "",
        **settings: Any,
    ) -> None:
        """`domains` names the failure domain of each place. `window_s` is that of a notice; 0: the
        default. `copies_folder`: a folder on a disk for copies. `module` is the command line.
        """
        defaults = {
            "gate_step": -1,
            "steps": 18,
            "every": 10,
            "peer_steps": 1,
            "bits": str(folder / "bits.jsonl"),
            "window_s": window_s or DEFAULT_WINDOW.pod_s,
        }
        super().__init__(folder, server, defaults | settings)
        self.nodes = nodes
        self.processes_of_node = processes
        self._copies = copies
        self._domains = tuple(domains or [""] * nodes)
        self._wait_s = wait_s
        self._min_nodes = min_nodes
        self._window_s = window_s
        self._copies_folder = copies_folder
        self._port = free_run(2 * nodes)
        self._child = child
        self._module = module
        self._env = env or {}

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(("127.0.0.1", self._port + 2 * place) for place in range(self.nodes))

    def start(self, *places: int, kill_at: str = "", module: str = "") -> None:
        program = [
            sys.executable,
            "-m",
            self._child,
            json.dumps(self.settings),
        ]
        options = [
            "--sharded",
            "--processes",
            str(self.processes_of_node),
            "--wait",
            str(self._wait_s),
        ]
        options += ["--run", self.run, "--checkpoints", self.settings["checkpoints"]]
        options += [] if self._copies else ["--copies", "0"]
        options += ["--min-nodes", str(self._min_nodes)] if self._min_nodes else []
        options += ["--window", str(self._window_s)] if self._window_s else []
        options += ["--copies-folder", self._copies_folder] if self._copies_folder else []
        command = [
            sys.executable,
            "-m",
            module or self._module,
            "train",
            "ranks",
            *options,
            "--",
            *program,
        ]
        for place in places:
            gang = {
                ENV_GANG_NODES: str(self.nodes),
                ENV_GANG_PORT: str(self._port),
                ENV_GANG_ADDRESS: "127.0.0.1",
            }
            variables_of_node = {
                ENV_COMPLETION_INDEX: str(place),
                ENV_GANG_DOMAIN: self._domains[place],
                ENV_KILL_AT: kill_at,
            }
            self.launch(
                place,
                command,
                **{
                    **self._env,
                    **LOOPBACK,
                    **gang,
                    **variables_of_node,
                    "OMP_NUM_THREADS": "1",
                },
            )

    def lose(self, *places: int) -> None:
        """Kills launchers, their ranks and uploaders at one moment, like machines without power."""
        kill_family(*(self.processes[place].pid for place in places))
        for place in places:
            self.ended(place)

    def held(self) -> dict[int, list[dict[str, Any]]]:
        """Returns the versions that each keeper holds, by place."""
        return self.places().list_heads()

    def places(self) -> PeerPlaces:
        """Returns the addresses of the keepers, as for a client outside the gang."""
        statuses = self.peers.look([*range(self.nodes)])
        keepers = list[Address]()
        for place in range(self.nodes):
            status = statuses.get(place, {})
            keepers.append(("127.0.0.1", int(status.get("keeper", 1))))
        asks: dict[str, Any] = {
            "run": self.run,
            "epoch": 0,
            "place": 0,
            "memories": (),
            "domains": self._domains,
        }
        return PeerPlaces(
            keepers=tuple(keepers),
            ranks_per_node=self.processes_of_node,
            **asks,
        )

    def has_copied(self, step: int) -> bool:
        """Returns whether each rank's shard of that step is on its neighbor too."""
        places = self.places()
        size = self.processes_of_node
        held = places.list_heads()
        for rank in range(self.nodes * size):
            neighbor = replace(places, place=rank // size).neighbor
            copies = set()
            for version in held[neighbor]:
                copies.add((version["rank"], version["step"]))
            if (rank, step) not in copies:
                return False
        return True

    @property
    def digest(self) -> str:
        return self.of("exit")[-1]["digest"]

    def at_gate(self) -> bool:
        return Path(f"{self.settings['gate']}-reached").exists()

    def shards_in_bucket(self) -> list[Path]:
        return [*self.checkpoints.rglob("*.bin")]

    def logs(self) -> str:
        return "\n".join(
            map(
                str,
                [
                    super().logs(),
                    *self.held().items(),
                    *self.of("restore"),
                    *self.of("save"),
                ],
            )
        )

    def bits(self) -> list[tuple[int, str]]:
        """Returns the step and digest of the state with which each start of the ranks began."""
        digests: list[tuple[int, str]] = []
        for line in read_lines(Path(self.settings["bits"])):
            digests.append((line["step"], line["digest"]))
        return digests

    def has_noted(self, step: int) -> bool:
        """Returns whether its bits at `step` are on disk: a copy may be complete before."""
        return any(done == step for done, _ in self.bits())


def staging_memories(launcher: int) -> list[Path]:
    """Returns the staging memories of a launcher in the order of their numbers."""
    memories = dict[int, Path]()
    for link in sorted(Path(f"/proc/{launcher}/fd").iterdir(), key=lambda link: int(link.name)):
        with suppress(FileNotFoundError):  # closed meanwhile
            if "holdfast-staging" in str(link.readlink()):
                memories.setdefault(link.stat().st_ino, link)
    return [*memories.values()]


def damage(memories: Iterable[Path]) -> None:
    """Flips one bit of each."""
    for memory in memories:
        if memory.stat().st_size:
            _flip(memory, [0])


def damage_copies(launcher: int) -> None:
    """Flips one bit of each shard that it keeps for the node before."""
    maps = Path(f"/proc/{launcher}/maps").read_text().splitlines()
    _flip(
        Path(f"/proc/{launcher}/mem"),
        [int(line.partition("-")[0], 16) for line in maps if "/dev/zero" in line],
    )


def _flip(memory: Path, starts: Iterable[int]) -> None:
    with memory.open("r+b", buffering=0) as opened:
        for start in starts:
            opened.seek(start)
            first = opened.read(1)
            opened.seek(start)
            opened.write(bytes([first[0] ^ 1]))


def lie(gang: ShardedGang, step: int, rank: int, *, to: int) -> None:
    """Sends, as a member of the gang, another shard of `rank` under the name of that version to the
    keeper of `to`.
    """
    places = gang.places()
    status = gang.peers.look([to]).get(to, {})
    versions = list[dict[str, Any]]()
    for entry in places.list_heads()[rank]:
        if (entry["rank"], entry["step"]) == (rank, step):
            versions.append(entry)
    if not versions or not status.get("epoch"):
        return
    version = max(versions, key=lambda entry: entry["start"])
    data = memoryview(bytearray(b"lie!" * 8))
    manifest = Manifest(
        run="sharded",
        step=step,
        attempt=version["attempt"],
        rank=rank,
        world_size=gang.nodes,
        shards=(Shard(bytes=len(data), crc32c=crc32c(data)),),
        tensors=(),
        values={},
    )
    liar = replace(places, place=(to - 1) % gang.nodes, epoch=status["epoch"]["number"])
    with suppress(NotFound):  # refused
        liar.copy(manifest, data, (-1, ""), version["start"])
