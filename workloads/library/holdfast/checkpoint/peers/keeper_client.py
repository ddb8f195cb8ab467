"""The keepers of a gang, as a rank and its uploader see them. The launcher that runs the keepers
states their addresses in the environment.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Self

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.format import Manifest, hex_digest
from holdfast.checkpoint.peers.protocol import TIMEOUT_S, Address, Head, ask, peer_key
from holdfast.vocabulary.environment import ENV_PEERS

SLOWEST_DISK = 20e6
"""Bytes a second at which a local disk takes copies in the worst case."""
Version = tuple[int, str]
"""Step and attempt, which name one state of the whole gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerPlaces:
    """Addresses of the keepers, and this rank's place among them."""

    run: str
    epoch: int
    """Epoch of the gang's membership; a keeper refuses messages of another epoch."""
    place: int
    keepers: Sequence[Address]
    """Addresses, by place."""
    ranks_per_node: int
    memories: Sequence[int]
    """Descriptors of this rank's staging memories, which outlive the rank."""
    domains: Sequence[str] = ()
    """Failure domain of each place, such as `zone/rack`; empty: unknown."""
    leaving: Sequence[Address] = ()
    """Addresses of keepers whose nodes have left the gang and still have its last version."""
    min_nodes: int = 0
    """Fewest nodes with which the gang continues; 0: it needs all of them."""
    max_nodes: int = 0
    """Number of nodes of the whole gang, if it continues with fewer."""
    folder_bytes: int = -1
    """Free bytes of this node's folder for copies, at the start; -1: copies are in memory."""
    node: int = 0
    """Number of this rank's node in the whole gang, which does not change with its size."""
    notes: int = -1
    """Descriptor of this rank's notes of what it computed, which outlive the rank; -1: none."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Self | None:
        """Reads the launcher's statement. None: no launcher keeps copies for this process."""
        text = variables.get(ENV_PEERS, "")
        if not text:
            return None
        return cls(**json.loads(text))

    @property
    def key(self) -> bytes:
        return peer_key(self.run)

    @property
    def resizes(self) -> bool:
        """True if the gang continues with fewer nodes than it may have."""
        return 0 < self.min_nodes < self.max_nodes

    @property
    def neighbor(self) -> int:
        """The place that keeps the copies of this one."""
        domains = self.domains or [""] * len(self.keepers)
        return find_neighbor(self.place, domains)

    def register_uploader(self, pid: int) -> None:
        """Registers an uploader at this node's keeper. Raises NotFound."""
        question = {
            "op": "hello",
            "pid": pid,
            "epoch": self.epoch,
        }
        ask(self.keepers[self.place], self.key, question)

    def announce_shard(
        self,
        manifest: Manifest,
        memory: int,
        start: int,
    ) -> None:
        """Tells this node's keeper what a staging memory holds. Raises NotFound."""
        head = {
            "op": "own",
            "memory": memory,
            "local": manifest.rank % self.ranks_per_node,
            "start": start,
        }
        self._send_shard(self.place, head, manifest)

    def copy(
        self,
        manifest: Manifest,
        data: memoryview,
        keep: Version,
        start: int,
    ) -> float:
        """Copies a shard to the neighbor, which keeps version `keep` meanwhile.

        Returns the CPU time that it took there, once the copy is complete and verified. Raises
        NotFound.
        """
        # A gang that has shrunk to one node: its own memory serves the nodes that join.
        if len(self.keepers) == 1:
            return 0.0
        head = {
            "op": "copy",
            "keep": list(keep),
            "start": start,
        }
        answer = self._send_shard(
            self.neighbor,
            head,
            manifest,
            data,
        )
        # A neighbor with an older library leaves it out of its answer.
        return float(answer.get("processor_s", 0.0))

    @property
    def spools(self) -> bool:
        """True if this node keeps own shards and copies in a folder on a local disk."""
        return self.folder_bytes >= 0

    def spool(
        self,
        manifest: Manifest,
        memory: int,
        keep: Version,
        start: int,
    ) -> float:
        """Copies a shard from its staging memory to this node's folder, which keeps version `keep`
        meanwhile.

        Returns the CPU time of the keeper. Raises NotFound.
        """
        head = {
            "op": "spool",
            "memory": memory,
            "local": manifest.rank % self.ranks_per_node,
            "keep": list(keep),
            "start": start,
        }
        timeout_s = TIMEOUT_S + manifest.length / SLOWEST_DISK
        answer = self._send_shard(
            self.place,
            head,
            manifest,
            timeout_s=timeout_s,
        )
        return float(answer["processor_s"])

    def _send_shard(
        self,
        place: int,
        head: Head,
        manifest: Manifest,
        *raw: memoryview,
        timeout_s: float = TIMEOUT_S,
    ) -> Head:
        payload = manifest.encode()
        question = head | {
            "rank": manifest.rank,
            "length": len(payload),
            "sha256": hex_digest(payload),
            "bytes": manifest.length,
            "step": manifest.step,
            "attempt": manifest.attempt,
            "epoch": self.epoch,
        }
        return ask(
            self.keepers[place],
            self.key,
            question,
            payload,
            *raw,
            timeout_s=timeout_s,
        )

    def find_memory(self, rank: int, version: Version) -> int:
        """Returns the number of this process's staging memory that holds a shard of `version`; -1:
        none. `rank` is the rank of this process, which may have staged the shard as another one.
        """
        memory = -1
        local = rank % self.ranks_per_node
        for shard in self._ask_for_shards(self.keepers[self.place]):
            shard_version = (shard["step"], shard["attempt"])
            if shard["local"] == local and shard_version == version:
                memory = max(memory, shard["memory"])
        return memory

    @property
    def sources(self) -> tuple[Address, ...]:
        """Addresses of all keepers that may hold shards: those of members come first."""
        return (*self.keepers, *self.leaving)

    def list_heads(self) -> dict[int, list[Head]]:
        """Returns what each keeper of `sources` holds, by its number there; nothing for a keeper
        that does not answer.

        A shard is described by rank, step, attempt, world_size, start, bytes, length and sha256 of
        its manifest, the number of its staging memory and the local rank that has it.
        """
        sources = self.sources
        with ThreadPoolExecutor(min(16, len(sources)), thread_name_prefix="peers") as pool:
            return dict(enumerate(pool.map(self._ask_for_shards, sources)))

    def _ask_for_shards(self, keeper: Address) -> list[Head]:
        try:
            answer = ask(keeper, self.key, {"op": "have"})
        except NotFound:
            return []
        return answer["held"]


def find_neighbor(place: int, domains: Sequence[str]) -> int:
    """Returns the place that keeps the copies of `place`.

    Pairs each place with one in another failure domain, at the widest level where domains differ,
    for as many places as possible. If all domains are the same it is the next place.
    """
    groups = _group_by_domain(domains)
    # Stable: places of one group stay in order.
    order = sorted(range(len(groups)), key=lambda number: groups[number])
    # The size of the largest group: no smaller stride leads out of each group.
    stride = max(Counter(groups).values())
    if stride == len(order):
        stride = 1
    position = order.index(place) + stride
    return order[position % len(order)]


def _group_by_domain(domains: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the domain of each place, cut to the widest level at which domains differ."""
    paths = [tuple(domain.split("/")) for domain in domains]
    for depth in range(1, max(map(len, paths))):
        groups = [path[:depth] for path in paths]
        if len(set(groups)) > 1:
            return groups
    return paths
