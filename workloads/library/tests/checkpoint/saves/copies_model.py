"""Every interleaving of copies in neighbors' memory: which version is whole, which stays, which
may be overwritten.

The model: a node for each place of a ring, with one rank. A rank asks whether the version before is
whole and stages the next one into a memory of its own. Its uploader announces that memory to the
keeper of its node and hands a copy to the keeper of the next node. A node may be lost at any
moment, for good or as one whose uploader goes on in the old epoch. The others end their ranks one
by one, a replacement without memory comes, and all restore what the keepers offer. Any copy may
fail. With a folder each node also copies its own shard there, and a rank has one staging memory
less.

The product decides: `Copies` on each rank, `Uploader` on the memory, `check_epoch` and
`choose_slot` on what a keeper takes, and `list_offers` on what is restored.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from holdfast.checkpoint.peers.keeper_client import PeerPlaces, Version
from holdfast.checkpoint.peers.slots import Refused, Slot, check_epoch, choose_slot
from holdfast.checkpoint.peers.storage import Offer, list_offers
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
    best_version,
    has_bytes,
    list_shards,
    make_slot,
    read_newest,
    replace_item,
)

TUNING = Tuning(peer_steps=1)


class Posts(Exception):
    """Raised when a rank brings a value to an agreement."""


@dataclass(frozen=True, kw_only=True)
class Model:
    nodes: int = 2
    first: int = 0
    """Step of a version that is whole at the beginning; 0: there is none."""
    steps: int = 2
    deaths: int = 1
    failures: int = 0
    zombies: bool = False
    """True if an uploader of an earlier epoch is running, and a lost node may leave another."""
    folder: bool = False
    spools: bool = True
    """False: a copy counts although its sender has it in a staging memory only."""
    copies: type[Copies] = Copies
    slot: Callable[[Sequence[Slot], Version, Version], Slot] = choose_slot
    check_epoch: Callable[[int, int], None] = check_epoch
    memory: Callable[[Any, int], int] = Uploader.free_memory
    offers: Callable[..., list[Offer]] = list_offers

    def __str__(self) -> str:
        zombies = " and zombies" if self.zombies else ""
        folder = " with a folder" if self.folder else ""
        return (
            f"{self.nodes} nodes{folder}, {self.steps} steps from {self.first},"
            f" {self.deaths} deaths, {self.failures} failures{zombies}"
        )

    @property
    def no_memory(self) -> tuple[Version, ...]:
        """Staging memories of a rank, all empty."""
        return EMPTY[1:] if self.folder else EMPTY

    def start(self) -> State:
        empty = Node(announced=self.no_memory, content=self.no_memory)
        if not self.first:
            return State(nodes=(empty,) * self.nodes)
        version = (self.first, f"{1:012x}")
        memories = (version, *self.no_memory[1:])
        node = Node(
            step=self.first,
            complete_version=version,
            complete_memory=-1 if self.folder else 0,
            newest=(version, 0, "copied"),
            announced=memories,
            content=memories,
            copies=((version, NONE), (NONE, NONE)),
            spooled=((version if self.folder else NONE, NONE), (NONE, NONE)),
        )
        old = Job(
            version=(self.first, f"{0:012x}"),
            memory=0,
            keep=NONE,
            phase="announced",
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
                # The replacement, which has nothing.
                yield state.with_node(place, phase="ended")
                continue
            if state.deaths < self.deaths:
                yield from self._die(state, place, node)
            yield from self._upload(state, place, node)
            if state.lost_places and node.phase != "ended":
                # Its keeper ends the uploader; what it sends ends with it, and what the keeper
                # copies to its folder may end before the next epoch.
                for spooled in _end_spooling(node.spooled):
                    dead = Node(
                        phase="ended",
                        announced=node.announced,
                        content=node.content,
                        copies=node.copies,
                        spooled=spooled,
                    )
                    yield state.with_node(place, **dead._asdict())
            else:
                yield from getattr(self, f"_when_{node.phase}")(state, place, node)
            yield from self._drop_partial_copies(state, place, node)
        for zombie in state.zombies:
            yield from self._send_late(state, *zombie)
        if all(node.phase == "ended" for node in state.nodes):
            yield self._restore(state)

    def check_end(self, state: State) -> None:
        phases = {node.phase for node in state.nodes}
        assert phases == {"done"}, f"stuck: {state}"

    def _die(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        state = state._replace(
            deaths=state.deaths + 1,
            lost_places=state.lost_places | {place},
        )
        dead = Node(
            phase="dead",
            announced=self.no_memory,
            content=self.no_memory,
        )
        state = state.with_node(place, **dead._asdict())
        yield state
        if self.zombies and node.job and node.job.phase in ("announced", "sending"):
            zombie = (place, state.epoch, node.job)
            yield state._replace(zombies=state.zombies | {zombie})

    # A rank.

    def _when_idle(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        if node.job and node.job.phase in ("copied", "uncopied"):
            copies = self._rebuild_copies(state, place)
            copies.record_outcome(Report(save=1, done=node.job.phase))
            yield state.with_node(place, job=None, newest=read_newest(copies))
        if node.step == self.steps:
            if not node.job:
                yield state.with_node(place, phase="done")
            return
        copies = self._rebuild_copies(state, place)
        try:
            copies.agree(self._ranks(state, place, node), node.step + 1, 1.0)
        except Posts as value:
            turn = node.turn + 1
            posted = state.posted | {(turn, place, str(value))}
            state = state._replace(posted=posted)
            yield state.with_node(place, phase="asked", turn=turn)

    def _when_asked(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        copies = self._rebuild_copies(state, place)
        try:
            ranks = self._ranks(state, place, node)
            idle = copies.agree(ranks, node.step + 1, 1.0)
        except Posts:
            return
        if place == 0:
            is_whole = copies.complete_version != node.complete_version
            state = state._replace(
                verdicts=state.verdicts | {(node.turn, idle, is_whole)},
                whole=copies.complete_version if is_whole else state.whole,
            )
        state = state.with_node(
            place,
            phase="idle",
            complete_version=copies.complete_version,
            complete_memory=copies.complete_memory,
        )
        if idle:
            copying: dict[int, InFlight] = {}
            if node.job:
                copying[1] = InFlight(step=0, memory=node.job.memory, started_at=0.0)
            uploader = SimpleNamespace(
                _in_flight={},
                _copying=copying,
                _memories=self.no_memory,
            )
            memory = self.memory(cast(Uploader, uploader), copies.complete_memory)
            assert memory >= 0, f"no memory is free: {state}"
            content = replace_item(node.content, memory, TORN)
            state = state.with_node(
                place,
                phase="staging",
                content=content,
                newest=(NONE, memory, ""),
            )
        yield state

    def _when_staging(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        """Stages into the memory, and tells the other ranks, which wait for all."""
        assert node.newest
        version = (node.step + 1, f"{state.epoch:012x}")
        turn = node.turn + 1
        content = replace_item(node.content, node.newest[1], version)
        state = state._replace(posted=state.posted | {(turn, place, "staged")})
        yield state.with_node(
            place,
            phase="staged",
            content=content,
            turn=turn,
        )

    def _when_staged(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        assert node.newest
        arrivals = sum(turn == node.turn for turn, _, _ in state.posted)
        if arrivals == self.nodes:
            version = (node.step + 1, f"{state.epoch:012x}")
            memory = node.newest[1]
            copies = self._rebuild_copies(state, place)
            copies.record_staging(
                version,
                memory,
                1,
                0.0,
            )
            job = Job(
                version=version,
                memory=memory,
                keep=copies.complete_version,
            )
            yield state.with_node(
                place,
                phase="idle",
                step=node.step + 1,
                newest=read_newest(copies),
                job=job,
                complete_version=copies.complete_version,
                complete_memory=copies.complete_memory,
            )

    def _when_done(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        yield from ()

    _when_ended = _when_done

    def _rebuild_copies(self, state: State, place: int) -> Copies:
        """Returns the Copies of a rank in `state`."""
        node = state.nodes[place]
        places = PeerPlaces(
            run="",
            epoch=state.epoch,
            place=place,
            keepers=(),
            ranks_per_node=1,
            memories=tuple(range(len(self.no_memory))),
            folder_bytes=0 if self.folder else -1,
        )
        copies = self.copies(
            places,
            TUNING,
            Restored(
                step=0,
                skipped=[],
                damaged={},
            ),
            place,
        )
        copies.complete_version = node.complete_version
        copies.complete_memory = node.complete_memory
        if node.newest and node.newest[0] != NONE:
            version, memory, outcome = node.newest
            copies.record_staging(
                version,
                memory,
                1,
                0.0,
            )
            if outcome != "copying":
                copies.record_outcome(Report(save=1, done=outcome))
        return copies

    def _ranks(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Ranks:
        def agree(
            value: str, decide: Callable[[list[str]], dict[str, Any]], **_: Any
        ) -> dict[str, Any]:
            if node.phase != "asked":
                raise Posts(value)
            values = {}
            for turn, other, posted in state.posted:
                if turn == node.turn:
                    values[other] = posted
            if place == 0 and len(values) == self.nodes:
                return decide([values[other] for other in range(self.nodes)])
            for turn, idle, whole in state.verdicts:
                if turn == node.turn:
                    return {
                        "idle": idle,
                        "whole": whole,
                        "every": 1,
                    }
            raise Posts(value)

        return cast(Ranks, SimpleNamespace(agree=agree))

    # Its uploader, and the keeper of the next node.

    def _upload(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        job = node.job
        if job and job.phase == "new":
            announced = replace_item(node.announced, job.memory, job.version)
            yield state.with_node(place, announced=announced, job=job._replace(phase="announced"))
        elif job and job.phase in ("announced", "sending"):
            for after, outcome in self._send(
                state,
                place,
                state.epoch,
                job,
            ):
                is_spooling = outcome == "copied" and self.folder and self.spools
                phase = "spooling" if is_spooling else outcome
                yield after.with_node(place, job=job._replace(phase=phase))
        elif job and job.phase == "spooling":
            for spooled, phase in self._spool(node, job):
                if phase == "uncopied":
                    state = state._replace(failures=state.failures + 1)
                yield state.with_node(place, spooled=spooled, job=job._replace(phase=phase))

    def _spool(
        self, node: Node, job: Job
    ) -> Iterator[tuple[tuple[tuple[Version, Version], ...], str]]:
        """Yields the node's folder after the keeper's next action, and the phase of the job."""
        arriving = (NONE, job.version)
        if arriving in node.spooled:
            index = node.spooled.index(arriving)
            content = node.content[job.memory]
            yield replace_item(node.spooled, index, (content, NONE)), "copied"
            return
        slots = [make_slot(*slot) for slot in node.spooled]
        try:
            index = slots.index(self.slot(slots, job.version, job.keep))
            yield replace_item(node.spooled, index, arriving), "spooling"
        except Refused:
            yield node.spooled, "uncopied"

    def _send_late(
        self,
        state: State,
        place: int,
        epoch: int,
        job: Job,
    ) -> Iterator[State]:
        """Sends a copy from a node that the others have lost."""
        for after, outcome in self._send(
            state,
            place,
            epoch,
            job,
        ):
            zombies = after.zombies - {(place, epoch, job)}
            if outcome == "sending":
                zombies |= {(place, epoch, job._replace(phase="sending"))}
            yield after._replace(zombies=zombies)

    def _send(
        self,
        state: State,
        place: int,
        epoch: int,
        job: Job,
    ) -> Iterator[tuple[State, str]]:
        """Yields states after a message, and the phase of the job: sending, copied or uncopied."""
        neighbor = (place + 1) % self.nodes
        keeper = state.nodes[neighbor]
        if keeper.phase == "dead" or state.failures < self.failures:
            failed = state.failures + (keeper.phase != "dead")
            after = self._empty_slot(state, neighbor, job)
            yield after._replace(failures=failed), "uncopied"
        if keeper.phase == "dead":
            return
        try:
            self.check_epoch(epoch, state.epoch)
            arriving = (NONE, job.version)
            if job.phase == "announced":
                slots = [make_slot(*copy) for copy in keeper.copies]
                index = slots.index(self.slot(slots, job.version, job.keep))
                copies = replace_item(keeper.copies, index, arriving)
                yield state.with_node(neighbor, copies=copies), "sending"
            elif arriving in keeper.copies:
                index = keeper.copies.index(arriving)
                copies = replace_item(keeper.copies, index, (job.version, NONE))
                yield state.with_node(neighbor, copies=copies), "copied"
            else:  # another process has that place by now
                yield state, "uncopied"
        except Refused:
            yield self._empty_slot(state, neighbor, job), "uncopied"

    def _empty_slot(
        self,
        state: State,
        place: int,
        job: Job,
    ) -> State:
        """Empties the slot of a copy that was cut off."""
        arriving = (NONE, job.version)
        copies: list[tuple[Version, Version]] = []
        for copy in state.nodes[place].copies:
            copies.append((NONE, NONE) if copy == arriving else copy)
        return state.with_node(place, copies=tuple(copies))

    def _drop_partial_copies(
        self,
        state: State,
        place: int,
        node: Node,
    ) -> Iterator[State]:
        """Empties the slots of copies whose sender has died."""
        sender = (place - 1) % self.nodes
        jobs = [state.nodes[sender].job]
        for zombie, _, job in state.zombies:
            if zombie == sender:
                jobs.append(job)
        sending = {job.version for job in jobs if job and job.phase == "sending"}
        for _, arriving in node.copies:
            if arriving != NONE and arriving not in sending:
                job = Job(version=arriving, memory=0, keep=NONE)
                yield self._empty_slot(state, place, job)

    # The next epoch.

    def _restore(self, state: State) -> State:
        version = self._find_restored(state)
        best = best_version(state)
        assert version >= best, f"{version} is restored, and {best} is there: {state}"
        neighbors = set()
        for place in state.lost_places:
            neighbors.add((place + 1) % self.nodes)
        if not neighbors & state.lost_places:
            assert version >= state.whole, (
                f"{state.whole} was whole, and {version} is restored: {state}"
            )
        nodes: list[Node] = []
        for node in state.nodes:
            memory = -1
            for number, announced in enumerate(node.announced):
                if announced == version != NONE:
                    memory = number
            nodes.append(
                Node(
                    step=max(version[0], 0),
                    complete_version=version,
                    complete_memory=memory,
                    announced=node.announced,
                    content=node.content,
                    copies=node.copies,
                    spooled=node.spooled,
                )
            )
        return state._replace(
            nodes=tuple(nodes),
            epoch=state.epoch + 1,
            whole=NONE,
            lost_places=frozenset(),
            posted=frozenset(),
            verdicts=frozenset(),
        )

    def _find_restored(self, state: State) -> Version:
        """Returns the newest offered version whose every shard verifies at one of its holders."""
        places = SimpleNamespace(run="job", list_heads=lambda: list_shards(state))
        offers = self.offers(
            cast(PeerPlaces, places),
            above=0,
            start=0,
        )
        for offer in offers:
            version = offer.step, json.loads(offer.commit)["body"]["attempt"]
            if self._verifies(state, offer, version):
                return version
        return NONE

    def _verifies(
        self,
        state: State,
        offer: Offer,
        version: Version,
    ) -> bool:
        for rank, holders in enumerate(offer.holders):
            nodes = [(place, state.nodes[place]) for place in holders]
            if not any(has_bytes(node, rank == place, version) for place, node in nodes):
                return False
        return True


def _end_spooling(
    spooled: tuple[tuple[Version, Version], ...],
) -> Iterator[tuple[tuple[Version, Version], ...]]:
    """Yields the folder of a node without and with what arrives there."""
    without = tuple((version, NONE) for version, _ in spooled)
    yield without
    completed = tuple(slot if slot[1] == NONE else (slot[1], NONE) for slot in spooled)
    if completed != without:
        yield completed
