"""What a rank and its uploader know of the keepers: stated in the environment by the launcher that
runs them.
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
from holdfast.checkpoint.peers.wire import Address, Head, ask, peer_key
from holdfast.vocabulary.environment import ENV_PEERS

Version = tuple[int, str]
"""Step and attempt: one state of the whole gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerPlaces:
    run: str
    epoch: int
    """Of the gang's membership; a keeper takes nothing from another one."""
    place: int
    keepers: Sequence[Address]
    """By place."""
    ranks_per_node: int
    memories: Sequence[int]
    """Descriptors of this rank's staging memories, which outlive it."""
    domains: Sequence[str] = ()
    """By place what a node may be lost with, as `zone/rack`; empty: unknown."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Self | None:
        """None: no launcher keeps copies for this process."""
        text = variables.get(ENV_PEERS, "")
        if not text:
            return None
        return cls(**json.loads(text))

    @property
    def key(self) -> bytes:
        return peer_key(self.run)

    @property
    def neighbour(self) -> int:
        """The place that keeps the copies of this one."""
        return neighbour_of(self.place, self.domains or ("",) * len(self.keepers))

    def hello(self, pid: int) -> None:
        """This node's keeper learns of an uploader. Raises NotFound."""
        ask(
            self.keepers[self.place],
            self.key,
            {
                "op": "hello",
                "pid": pid,
                "epoch": self.epoch,
            },
        )

    def own(self, manifest: Manifest, memory: int, start: int) -> None:
        """This node's keeper learns what a staging memory holds. Raises NotFound."""
        local = manifest.rank % self.ranks_per_node
        self._put(
            self.place,
            {
                "op": "own",
                "memory": memory,
                "local": local,
                "start": start,
            },
            manifest,
        )

    def copy(
        self,
        manifest: Manifest,
        data: memoryview,
        keep: Version,
        start: int,
    ) -> float:
        """To the neighbour, and true of it when this returns: the processor time that it took
        there. Raises NotFound.
        """
        head = {
            "op": "copy",
            "keep": list(keep),
            "start": start,
        }
        # An older library there does not answer it.
        return float(self._put(self.neighbour, head, manifest, data).get("processor_s", 0.0))

    def _put(self, place: int, head: Head, manifest: Manifest, *raw: memoryview) -> Head:
        payload = manifest.encode()
        about = {
            "rank": manifest.rank,
            "length": len(payload),
            "sha256": hex_digest(payload),
            "bytes": manifest.length,
        }
        about |= {"step": manifest.step, "attempt": manifest.attempt}
        return ask(
            self.keepers[place], self.key, head | about | {"epoch": self.epoch}, payload, *raw
        )

    def memory_of(self, rank: int, version: Version) -> int:
        """Which staging memory of this rank holds it; -1: none."""
        held = self._held_by(self.place)
        mine = (
            one["memory"]
            for one in held
            if (one["rank"], one["step"], one["attempt"]) == (rank, *version)
        )
        return max(mine, default=-1)

    def held(self) -> dict[int, list[Head]]:
        """By place what each keeper that answers holds: rank, step, attempt, world_size, length and
        sha256 of the manifest, bytes, start; of a staging memory its number.
        """
        with ThreadPoolExecutor(min(16, len(self.keepers)), thread_name_prefix="peers") as pool:
            return dict(enumerate(pool.map(self._held_by, range(len(self.keepers)))))

    def _held_by(self, place: int) -> list[Head]:
        try:
            return ask(self.keepers[place], self.key, {"op": "have"})["held"]
        except NotFound:
            return []


def neighbour_of(place: int, domains: Sequence[str]) -> int:
    """Each place keeps the copies of one other: of another domain, at the largest level in which
    they differ, for as many as possible. The next place where all domains are the same.
    """
    paths = [tuple(domain.split("/")) for domain in domains]
    cut = ([path[:depth] for path in paths] for depth in range(1, max(map(len, paths))))
    groups = next((each for each in cut if len({*each}) > 1), paths)
    # By the size of the largest group: no smaller step leads out of each.
    order = sorted(range(len(groups)), key=lambda at: (groups[at], at))
    step = max(Counter(groups).values())
    return order[(order.index(place) + (step if step < len(order) else 1)) % len(order)]
