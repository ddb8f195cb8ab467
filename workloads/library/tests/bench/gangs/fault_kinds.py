"""The kinds of faults of a sharded gang's nodes, and how often each comes in a kill matrix."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count

NODES = 4
TOGETHER = {
    "one": (0,),
    "neighbors": (0, 1),
    "two others": (0, 2),
    "all": (0, 1, 2, 3),
}
"""Nodes that are lost at one moment, as distances to the place of the blow."""
POINTS = (
    "stage.begin",
    "stage.end",
    "peer.agree",
    "peer.copy",
    "peer.send",
    "peer.receive",
    "peer.copied",
    "peer.restore",
    "restore.verified",
    "gang.join",
)
IN_AN_EPOCH_CHANGE = ("gang.report", "gang.propose", "gang.proposed")
"""Points that a survivor reaches, so another node is lost first."""
STAGED = "staged damaged"
OLDER = "newest damaged"
STORE = "all damaged"
FULL = "full"
LIAR = "liar"
UNCOMMITTED = "uncommitted damaged"
COPY = "copy damaged"
DAMAGED = {
    STAGED: 2,
    STORE: 1,
    UNCOMMITTED: 1,
    COPY: -1,
}
"""The distance to the node that is lost when the memory of one is damaged."""
SPOILED = ("stopped", "zombie", STAGED, OLDER, STORE, COPY, FULL, LIAR, UNCOMMITTED)
KINDS = (*TOGETHER, *POINTS, *IN_AN_EPOCH_CHANGE, *SPOILED)
TIMES = {
    "neighbors": 2,
    STORE: 2,
    LIAR: 3,
    OLDER: 4,
    STAGED: 3,
    FULL: 3,
    UNCOMMITTED: 3,
}
"""Blows per round where it is not one: of 300 kills each fall-back must come ten times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    kind: str
    place: int
    delay_s: float = 0.0
    count: int = 1
    """Times that a named point is reached before the kill."""


def endless(seed: int) -> Iterator[Blow]:
    """Yields rounds of every kind, each in a random order."""
    rng = random.Random(seed)
    kinds = list[str]()
    for kind in KINDS:
        kinds += [kind] * TIMES.get(kind, 1)
    rounds = chain.from_iterable(rng.sample(kinds, len(kinds)) for _ in count())
    for kind in rounds:
        if kind.startswith("gang.propose"):
            place = 0
        else:
            place = rng.randrange(kind == "gang.report", NODES)
        if kind == "zombie":  # its rank 0 commits
            place = rng.choice((0, 0, place))
        if kind == "peer.send":
            times = rng.randint(1, 2)
        else:
            times = rng.randint(1, 3) if kind in POINTS[:7] else 1
        delay_s = 0.0 if kind == UNCOMMITTED else rng.uniform(0, 0.3)
        yield Blow(
            kind=kind,
            place=place,
            delay_s=delay_s,
            count=times,
        )
