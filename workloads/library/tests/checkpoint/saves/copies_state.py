"""States of the model of copies (copies_model.py): what nodes, ranks, uploaders and keepers hold."""

from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from holdfast.checkpoint.peers.keeper import Slot
from holdfast.checkpoint.peers.places import Version
from holdfast.checkpoint.save.copies import NONE, Copies

T = TypeVar("T")
TORN: Version = (-2, "")
"""What a memory holds while it is being written."""
GONE = ("dead", "ended")
EMPTY = (NONE, NONE, NONE)
"""A staging memory for what is kept, one for what is copied, one for what is uploaded."""


class Job(NamedTuple):
    """Of an uploader."""

    version: Version
    memory: int
    keep: Version
    phase: str = "new"
    """new, stated, sending, then copied or uncopied, as its rank will hear."""


class Node(NamedTuple):
    phase: str = "idle"
    """Of its rank: idle, asked, staging, staged or done; ended: the launcher waits for the next
    epoch; dead.
    """
    step: int = 0
    turn: int = 0
    kept: Version = NONE
    kept_memory: int = -1
    newest: tuple[Version, int, str] | None = None
    job: Job | None = None
    stated: tuple[Version, ...] = EMPTY
    """What its keeper was told of each staging memory."""
    content: tuple[Version, ...] = EMPTY
    copies: tuple[tuple[Version, Version], ...] = ((NONE, NONE), (NONE, NONE))
    """Of the node before: the version that a slot holds, and the one that arrives there."""


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
    lost: frozenset[int] = frozenset()
    """Places, in this epoch."""
    whole: Version = NONE
    """What all ranks have agreed on in this epoch."""

    def pruned(self) -> "State":
        """And with agreements counted from the oldest that a rank is in."""
        turns = []
        for node in self.nodes:
            if node.phase not in GONE:
                turns.append(node.turn - (node.phase in ("asked", "staged")))
        past = min(turns, default=0)
        if not past:
            return self
        return self._replace(
            nodes=tuple(
                n if n.phase in GONE else n._replace(turn=n.turn - past) for n in self.nodes
            ),
            posted=frozenset((turn - past, *rest) for turn, *rest in self.posted if turn > past),
            verdicts=frozenset(
                (turn - past, *rest) for turn, *rest in self.verdicts if turn > past
            ),
        )

    def with_node(self, place: int, **changes: Any) -> "State":
        node = self.nodes[place]._replace(**changes)
        return self._replace(nodes=(*self.nodes[:place], node, *self.nodes[place + 1 :]))


def held(state: State) -> dict[int, list[dict[str, Any]]]:
    """What each keeper answers."""
    count = len(state.nodes)

    def head(rank: int, version: Version) -> dict[str, Any]:
        about = {
            "length": 1,
            "sha256": "0" * 64,
            "bytes": 1,
            "start": 0,
            "world_size": count,
        }
        return about | {
            "rank": rank,
            "step": version[0],
            "attempt": version[1],
        }

    return {
        place: [
            *(head(place, version) for version in node.stated if version != NONE),
            *(head((place - 1) % count, version) for version, _ in node.copies if version != NONE),
        ]
        for place, node in enumerate(state.nodes)
    }


def has(node: Node, own: bool, version: Version) -> bool:
    """Its bytes, and not its name alone."""
    if own:
        return any(s == c == version for s, c in zip(node.stated, node.content, strict=True))
    return any(found == version for found, _ in node.copies)


def best(state: State) -> Version:
    count = len(state.nodes)
    there = []
    for version in {
        (one["step"], one["attempt"]) for found in held(state).values() for one in found
    }:
        if all(
            has(node, True, version) or has(state.nodes[(place + 1) % count], False, version)
            for place, node in enumerate(state.nodes)
        ):
            there.append(version)
    return max(there, default=NONE)


def newest_of(copies: Copies) -> tuple[Version, int, str] | None:
    newest = copies._newest  # pyright: ignore[reportPrivateUsage]
    return (newest.version, newest.memory, newest.state) if newest else None


def slot_of(version: Version, arriving: Version) -> Slot:
    found: Any = SimpleNamespace(version=version) if version != NONE else None
    return Slot(held=found, arriving=arriving != NONE)


def put(old: tuple[T, ...], at: int, new: T) -> tuple[T, ...]:
    return (*old[:at], new, *old[at + 1 :])
