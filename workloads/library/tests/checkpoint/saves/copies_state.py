"""States of nodes, ranks, uploaders and keepers in the model of copies (copies_model.py)."""

from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from holdfast.checkpoint.peers.keeper_client import Version
from holdfast.checkpoint.peers.slots import Slot
from holdfast.checkpoint.save.copies import NONE, Copies

T = TypeVar("T")
TORN: Version = (-2, "")
"""Content of a memory while it is being written."""
GONE = ("dead", "ended")
EMPTY = (NONE, NONE, NONE)
"""A staging memory for what is kept, one for what is copied, one for what is uploaded."""
NO_COPIES = ((NONE, NONE), (NONE, NONE))


class Job(NamedTuple):
    """Job of an uploader."""

    version: Version
    memory: int
    keep: Version
    phase: str = "new"
    """new, announced, sending (with a folder: spooling), then copied or uncopied, which its rank
    will hear.
    """


class Node(NamedTuple):
    phase: str = "idle"
    """State of its rank: idle, asked, staging, staged or done; ended: the launcher waits for the
    next epoch; dead.
    """
    step: int = 0
    turn: int = 0
    complete_version: Version = NONE
    complete_memory: int = -1
    newest: tuple[Version, int, str] | None = None
    job: Job | None = None
    announced: tuple[Version, ...] = EMPTY
    """The version that, as far as its keeper knows, each staging memory holds."""
    content: tuple[Version, ...] = EMPTY
    copies: tuple[tuple[Version, Version], ...] = NO_COPIES
    """Copies of the node before: the version that a slot holds, and the one that arrives there."""
    spooled: tuple[tuple[Version, Version], ...] = NO_COPIES
    """Own shards in the node's folder, as `copies`."""


class State(NamedTuple):
    nodes: tuple[Node, ...]
    epoch: int = 1
    posted: frozenset[tuple[int, int, str]] = frozenset()
    """(turn, place, state of its newest copy)."""
    verdicts: frozenset[tuple[int, bool, bool]] = frozenset()
    """(turn, idle, whole)."""
    zombies: frozenset[tuple[int, int, Job]] = frozenset()
    """(place, epoch, job)."""
    deaths: int = 0
    failures: int = 0
    lost_places: frozenset[int] = frozenset()
    """Places of nodes that were lost in this epoch."""
    whole: Version = NONE
    """Version on which all ranks have agreed in this epoch."""

    def prune(self) -> "State":
        """Renumbers the agreements from the oldest that a rank takes part in."""
        turns = []
        for node in self.nodes:
            if node.phase not in GONE:
                turns.append(node.turn - (node.phase in ("asked", "staged")))
        past = min(turns, default=0)
        if not past:
            return self
        nodes: list[Node] = []
        for node in self.nodes:
            if node.phase not in GONE:
                node = node._replace(turn=node.turn - past)
            nodes.append(node)
        posted: set[tuple[int, int, str]] = set()
        for turn, place, value in self.posted:
            if turn > past:
                posted.add((turn - past, place, value))
        verdicts: set[tuple[int, bool, bool]] = set()
        for turn, idle, whole in self.verdicts:
            if turn > past:
                verdicts.add((turn - past, idle, whole))
        return self._replace(
            nodes=tuple(nodes),
            posted=frozenset(posted),
            verdicts=frozenset(verdicts),
        )

    def with_node(self, place: int, **changes: Any) -> "State":
        node = self.nodes[place]._replace(**changes)
        nodes = list(self.nodes)
        nodes[place] = node
        return self._replace(nodes=tuple(nodes))


Description = dict[str, Any]
"""A keeper's description of a shard."""


def list_shards(state: State) -> dict[int, list[Description]]:
    """Returns the answer of each keeper, by place."""
    count = len(state.nodes)
    shards: dict[int, list[Description]] = {}
    for place, node in enumerate(state.nodes):
        shards[place] = []
        for memory, version in enumerate(node.announced):
            if version != NONE:
                shards[place].append(_describe(place, version, count, memory=memory))
        neighbor = (place - 1) % count
        for rank, slots in ((place, node.spooled), (neighbor, node.copies)):
            for version, _ in slots:
                if version != NONE:
                    shards[place].append(_describe(rank, version, count))
    return shards


def _describe(
    rank: int,
    version: Version,
    world_size: int,
    *,
    memory: int = -1,
) -> Description:
    return {
        "memory": memory,
        "length": 1,
        "sha256": "0" * 64,
        "bytes": 1,
        "start": 0,
        "world_size": world_size,
        "rank": rank,
        "step": version[0],
        "attempt": version[1],
    }


def has_bytes(
    node: Node,
    is_home: bool,
    version: Version,
) -> bool:
    """Tells whether a node holds the bytes of a version, and not its name alone.

    `is_home`: in its staging memory or its folder; otherwise as a copy of the node before.
    """
    if is_home:
        memories = zip(node.announced, node.content, strict=True)
        if any(announced == content == version for announced, content in memories):
            return True
        return any(spooled == version for spooled, _ in node.spooled)
    return any(copy == version for copy, _ in node.copies)


def best_version(state: State) -> Version:
    """Returns the newest version of which some node holds every shard."""
    versions: set[Version] = {NONE}
    for shards in list_shards(state).values():
        for shard in shards:
            versions.add((shard["step"], shard["attempt"]))
    return max(version for version in versions if _is_whole(state, version))


def _is_whole(state: State, version: Version) -> bool:
    if version == NONE:
        return True
    count = len(state.nodes)
    for place, node in enumerate(state.nodes):
        neighbor = state.nodes[(place + 1) % count]
        if not has_bytes(node, True, version) and not has_bytes(neighbor, False, version):
            return False
    return True


def read_newest(copies: Copies) -> tuple[Version, int, str] | None:
    newest = copies._newest  # pyright: ignore[reportPrivateUsage]
    return (newest.version, newest.memory, newest.state) if newest else None


def make_slot(version: Version, arriving: Version) -> Slot:
    shard: Any = None
    if version != NONE:
        shard = SimpleNamespace(version=version)
    return Slot(shard=shard, arriving=arriving != NONE)


def replace_item(
    items: tuple[T, ...],
    index: int,
    item: T,
) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
