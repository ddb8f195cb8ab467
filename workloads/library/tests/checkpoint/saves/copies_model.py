"""Every interleaving of copies in neighbours' memory: which version is whole, which stays, which
may be overwritten.

The model: a node for each place of a ring, with one rank. A rank asks whether the version before is
whole, stages the next into a memory of its own, and its uploader states that memory to its node's
keeper and hands a copy to the next node's. A node may be lost at any moment, for good or as one
whose uploader goes on in the old epoch. The others end their ranks one by one, a replacement
without memory comes, and all restore what the keepers offer. Any copy may fail.

What is decided is decided by the product: `Copies` by its own code on each rank, the memory by
`Uploader`, what a keeper takes by `check_epoch` and `giving_way`, and what is restored by
`whole_offers`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from holdfast.checkpoint.peers.keeper import Refused, Slot, check_epoch, giving_way
from holdfast.checkpoint.peers.places import PeerPlaces, Version
from holdfast.checkpoint.peers.storage import Offer, whole_offers
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.copies import NONE, Copies
from holdfast.checkpoint.save.uploader import InFlight, Report, Uploader
from holdfast.checkpoint.settings import Tuning
from workloads.library.tests.checkpoint.saves.copies_state import (
    EMPTY,
    TORN,
    Job,
    Node,
    State,
    best,
    has,
    held,
    newest_of,
    put,
    slot_of,
)

TUNING = Tuning(peer_steps=1)


class Posts(Exception):
    """What a rank brings to an agreement."""


@dataclass(frozen=True, kw_only=True)
class Model:
    nodes: int = 2
    first: int = 0
    """Step of a version that is whole at the beginning; 0: there is none."""
    steps: int = 2
    deaths: int = 1
    failures: int = 0
    zombies: bool = False
    """Whether one of an earlier epoch is there, and a lost node may become one."""
    copies: type[Copies] = Copies
    slot: Callable[[Sequence[Slot], Version, Version], Slot] = giving_way
    check_epoch: Callable[[int, int], None] = check_epoch
    memory: Callable[[Any, int], int] = Uploader.free_memory
    offers: Callable[..., list[Offer]] = whole_offers

    def __str__(self) -> str:
        zombies = " and zombies" if self.zombies else ""
        return (
            f"{self.nodes} nodes, {self.steps} steps from {self.first}, {self.deaths} deaths,"
            f" {self.failures} failures{zombies}"
        )

    def start(self) -> State:
        if not self.first:
            return State(nodes=(Node(),) * self.nodes)
        version = (self.first, f"{1:012x}")
        memories = (version, NONE, NONE)
        node = Node(
            step=self.first,
            kept=version,
            kept_memory=0,
            newest=(version, 0, "copied"),
            stated=memories,
            content=memories,
            copies=((version, NONE), (NONE, NONE)),
        )
        old = Job(
            version=(self.first, f"{0:012x}"),
            memory=0,
            keep=NONE,
            phase="stated",
        )
        zombies = frozenset({(0, 0, old)} if self.zombies else ())
        return State(
            nodes=(node,) * self.nodes,
            whole=version,
            zombies=zombies,
        )

    def moves(self, state: State) -> Iterator[State]:
        if all(node.phase == "done" for node in state.nodes):
            return
        for place, node in enumerate(state.nodes):
            if node.phase == "dead":
                yield state.with_node(place, phase="ended")  # the replacement, which has nothing
                continue
            if state.deaths < self.deaths:
                yield from self._dies(state, place, node)
            yield from self._uploads(state, place, node)
            if state.lost and node.phase != "ended":
                # Its keeper ends the uploader; what it sends ends with it.
                memory = {
                    "stated": node.stated,
                    "content": node.content,
                    "copies": node.copies,
                }
                yield state.with_node(place, **Node(phase="ended", **memory)._asdict())
            else:
                yield from getattr(self, f"_{node.phase}")(state, place, node)
            yield from self._cut_off(state, place, node)
        for zombie in state.zombies:
            yield from self._sends_late(state, *zombie)
        if all(node.phase == "ended" for node in state.nodes):
            yield self._restored(state)

    def check_end(self, state: State) -> None:
        assert {node.phase for node in state.nodes} == {"done"}, f"stuck: {state}"

    def _dies(self, state: State, place: int, node: Node) -> Iterator[State]:
        lost = state.with_node(place, **Node(phase="dead")._asdict())._replace(
            deaths=state.deaths + 1
        )
        lost = lost._replace(lost=state.lost | {place})
        yield lost
        if self.zombies and node.job and node.job.phase in ("stated", "sending"):
            yield lost._replace(zombies=state.zombies | {(place, state.epoch, node.job)})

    # A rank.

    def _idle(self, state: State, place: int, node: Node) -> Iterator[State]:
        if node.job and node.job.phase in ("copied", "uncopied"):
            own = self._copies_of(state, place)
            own.take(Report(save=1, done=node.job.phase))
            yield state.with_node(place, job=None, newest=newest_of(own))
        if node.step == self.steps:
            if not node.job:
                yield state.with_node(place, phase="done")
            return
        own = self._copies_of(state, place)
        try:
            own.agree(self._ranks(state, place, node), node.step + 1, 1.0)
        except Posts as mine:
            posted = state.posted | {(node.turn + 1, place, str(mine))}
            yield state.with_node(place, phase="asked", turn=node.turn + 1)._replace(posted=posted)

    def _asked(self, state: State, place: int, node: Node) -> Iterator[State]:
        own = self._copies_of(state, place)
        try:
            idle = own.agree(self._ranks(state, place, node), node.step + 1, 1.0)
        except Posts:
            return
        if place == 0:
            whole = own.kept if own.kept != node.kept else state.whole
            state = state._replace(
                verdicts=state.verdicts | {(node.turn, idle, own.kept != node.kept)}, whole=whole
            )
        state = state.with_node(
            place,
            phase="idle",
            kept=own.kept,
            kept_memory=own.kept_memory,
        )
        if idle:
            if node.job is None:
                held = {}
            else:
                held = {1: InFlight(step=0, memory=node.job.memory, began=0.0)}
            uploader = SimpleNamespace(
                _in_flight={},
                _copying=held,
                _memories=EMPTY,
            )
            memory = self.memory(cast(Uploader, uploader), own.kept_memory)
            assert memory >= 0, f"no memory is free: {state}"
            content = put(node.content, memory, TORN)
            state = state.with_node(
                place,
                phase="staging",
                content=content,
                newest=(NONE, memory, ""),
            )
        yield state

    def _staging(self, state: State, place: int, node: Node) -> Iterator[State]:
        """Into the memory, and to the others, which wait for all."""
        assert node.newest
        version = (node.step + 1, f"{state.epoch:012x}")
        turn = node.turn + 1
        content = put(node.content, node.newest[1], version)
        posted = state.posted | {(turn, place, "staged")}
        yield state.with_node(
            place,
            phase="staged",
            content=content,
            turn=turn,
        )._replace(posted=posted)

    def _staged(self, state: State, place: int, node: Node) -> Iterator[State]:
        assert node.newest
        if sum(one[0] == node.turn for one in state.posted) == self.nodes:
            version = (node.step + 1, f"{state.epoch:012x}")
            memory = node.newest[1]
            own = self._copies_of(state, place)
            own.staged(version, memory, 1, 0.0)
            job = Job(version=version, memory=memory, keep=own.kept)
            kept = {"kept": own.kept, "kept_memory": own.kept_memory}
            yield state.with_node(
                place,
                phase="idle",
                step=node.step + 1,
                newest=newest_of(own),
                job=job,
                **kept,
            )

    def _done(self, state: State, place: int, node: Node) -> Iterator[State]:
        yield from ()

    _ended = _done

    def _copies_of(self, state: State, place: int) -> Copies:
        """As it was."""
        node = state.nodes[place]
        places = PeerPlaces(
            run="",
            epoch=state.epoch,
            place=place,
            keepers=(),
            ranks_per_node=1,
            memories=tuple(range(len(EMPTY))),
        )
        own = self.copies(
            places,
            TUNING,
            Restored(
                step=0,
                skipped=[],
                damaged={},
            ),
            place,
        )
        own.kept = node.kept
        own.kept_memory = node.kept_memory
        if node.newest and node.newest[0] != NONE:
            own.staged(node.newest[0], node.newest[1], 1, 0.0)
            if node.newest[2] != "copying":
                own.take(Report(save=1, done=node.newest[2]))
        return own

    def _ranks(self, state: State, place: int, node: Node) -> Ranks:
        def agree(
            mine: str, decide: Callable[[list[str]], dict[str, Any]], **_: Any
        ) -> dict[str, Any]:
            brought = {one: found for turn, one, found in state.posted if turn == node.turn}
            if node.phase == "asked" and place == 0 and len(brought) == self.nodes:
                return decide([brought[one] for one in range(self.nodes)])
            for turn, idle, whole in state.verdicts if node.phase == "asked" else ():
                if turn == node.turn:
                    return {
                        "idle": idle,
                        "whole": whole,
                        "every": 1,
                    }
            raise Posts(mine)

        return cast(Ranks, SimpleNamespace(agree=agree))

    # Its uploader, and the keeper of the next node.

    def _uploads(self, state: State, place: int, node: Node) -> Iterator[State]:
        job = node.job
        if job and job.phase == "new":
            stated = put(node.stated, job.memory, job.version)
            yield state.with_node(place, stated=stated, job=job._replace(phase="stated"))
        elif job and job.phase in ("stated", "sending"):
            for after, outcome in self._sends(state, place, state.epoch, job):
                yield after.with_node(place, job=job._replace(phase=outcome))

    def _sends_late(self, state: State, place: int, epoch: int, job: Job) -> Iterator[State]:
        """Of a node that the others have lost."""
        for after, outcome in self._sends(state, place, epoch, job):
            left = after.zombies - {(place, epoch, job)}
            if outcome == "sending":
                goes_on = {(place, epoch, job._replace(phase="sending"))}
            else:
                goes_on = set()
            yield after._replace(zombies=left | goes_on)

    def _sends(self, state: State, place: int, epoch: int, job: Job) -> Iterator[tuple[State, str]]:
        """What becomes of it: sending, copied or uncopied."""
        neighbour = (place + 1) % self.nodes
        keeper = state.nodes[neighbour]
        if keeper.phase == "dead" or state.failures < self.failures:
            failed = state.failures + (keeper.phase != "dead")
            yield self._without(state, neighbour, job)._replace(failures=failed), "uncopied"
        if keeper.phase == "dead":
            return
        try:
            self.check_epoch(epoch, state.epoch)
            slots = [slot_of(*one) for one in keeper.copies]
            if job.phase == "stated":
                at = slots.index(self.slot(slots, job.version, job.keep))
                yield (
                    state.with_node(neighbour, copies=put(keeper.copies, at, (NONE, job.version))),
                    "sending",
                )
            elif (NONE, job.version) in keeper.copies:
                at = keeper.copies.index((NONE, job.version))
                yield (
                    state.with_node(neighbour, copies=put(keeper.copies, at, (job.version, NONE))),
                    "copied",
                )
            else:  # another process has that place by now
                yield state, "uncopied"
        except Refused:
            yield self._without(state, neighbour, job), "uncopied"

    def _without(self, state: State, place: int, job: Job) -> State:
        """A copy that is cut off leaves its slot empty."""
        copies = state.nodes[place].copies
        left = tuple((NONE, NONE) if one == (NONE, job.version) else one for one in copies)
        return state.with_node(place, copies=left)

    def _cut_off(self, state: State, place: int, node: Node) -> Iterator[State]:
        """A keeper whose sender is gone."""
        before = (place - 1) % self.nodes
        jobs = [
            state.nodes[before].job,
            *(job for zombie, _, job in state.zombies if zombie == before),
        ]
        sent = {job.version for job in jobs if job and job.phase == "sending"}
        for _, arriving in node.copies:
            if arriving != NONE and arriving not in sent:
                yield self._without(state, place, Job(version=arriving, memory=0, keep=NONE))

    # The next epoch.

    def _restored(self, state: State) -> State:
        found = self._taken_up(state)
        assert found >= best(state), f"{found} is restored, and {best(state)} is there: {state}"
        together = any((place + 1) % self.nodes in state.lost for place in state.lost)
        if not together:
            assert found >= state.whole, (
                f"{state.whole} was whole, and {found} is restored: {state}"
            )
        nodes: list[Node] = []
        for node in state.nodes:
            memory = max(
                (m for m, version in enumerate(node.stated) if version == found != NONE), default=-1
            )
            same = {
                "stated": node.stated,
                "content": node.content,
                "copies": node.copies,
            }
            nodes.append(
                Node(
                    step=max(found[0], 0),
                    kept=found,
                    kept_memory=memory,
                    **same,
                )
            )
        empty = dict.fromkeys(("lost", "posted", "verdicts"), frozenset())
        return state._replace(
            nodes=tuple(nodes),
            epoch=state.epoch + 1,
            whole=NONE,
            **empty,
        )

    def _taken_up(self, state: State) -> Version:
        """The newest of those that are offered whose bytes verify; of a shard any holder's."""
        places = SimpleNamespace(run="job", held=lambda: held(state))
        for offer in self.offers(
            cast(PeerPlaces, places),
            self.nodes,
            above=0,
            start=0,
        ):
            version = offer.step, json.loads(offer.commit)["body"]["attempt"]
            if all(
                any(has(state.nodes[place], rank == place, version) for place in holders)
                for rank, holders in enumerate(offer.holders)
            ):
                return version
        return NONE
