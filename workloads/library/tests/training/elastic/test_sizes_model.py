"""Explores every interleaving of a sharded gang that changes its size: who is in the next epoch,
which ranks compute which shards there, which version they restore, and how long a node that leaves
serves its memory.

In the model each node has one rank. A step stages a version on every node, and each node's copy
reaches its neighbor at a moment of its own; the next step waits for all copies. A notice, and a
node that asks to join, end the epoch at a step: all nodes stop once all copies are complete. A
death ends the ranks of the others one by one. The lowest node that stays proposes what the
product's own `successor` returns once the others have reported. All restore what `list_offers`
finds in the memory of members and of nodes that leave; each reads at a moment of its own, and a
node that leaves is gone as soon as `has_restored` lets it.

The product decides: `successor`, `Epoch.divide_ranks`, `share`, `find_neighbor`, `list_offers` and
`has_restored`.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from holdfast.checkpoint.peers.keeper_client import find_neighbor
from holdfast.checkpoint.peers.storage import Offer, list_offers
from holdfast.training.elastic.shards import share
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.regroup import successor
from holdfast.training.sharded.epoch_end import RESTORED, has_restored
from workloads.library.tests.interleavings import explore

Record = dict[str, Any]
SHARDS = 4
ABSENT = ("dead", "left", "away")


class Shard(NamedTuple):
    """A shard of a version: that of one rank."""

    step: int
    epoch: int
    size: int
    rank: int


class Node(NamedTuple):
    phase: str = "restoring"
    """restoring, read, run, stopped, serving, asking, done, or one of ABSENT."""
    incarnation: str = "a"
    epoch: int = 0
    step: int = 0
    has_notice: bool = False
    staged: tuple[Shard, ...] = ()
    announced: frozenset[Shard] = frozenset()
    """Shards that its keeper knows of; the uploader announces one before it copies it."""
    copies: tuple[Shard, ...] = ()


class State(NamedTuple):
    nodes: tuple[Node, ...]
    epochs: tuple[Epoch, ...]
    """The newest three epochs in the storage."""
    reported: frozenset[tuple[int, int]] = frozenset()
    ending: int = 0
    """Number of the newest epoch that ends at a step."""
    broken: frozenset[int] = frozenset()
    """Numbers of epochs of which a member died."""
    restored: frozenset[tuple[int, int]] = frozenset()
    choice: tuple[int, int] = (0, 0)
    """Number of an epoch, and the step that its ranks restore."""
    whole: int = 0
    """Newest step of which every shard was on two nodes of this epoch."""
    deaths: int = 0
    notices: int = 0
    joins: int = 0

    def prune(self) -> "State":
        oldest = self.epochs[0].number
        broken = frozenset(number for number in self.broken if number >= oldest)
        return self._replace(
            reported=_keep_newest(self.reported, oldest),
            restored=_keep_newest(self.restored, oldest),
            broken=broken,
        )

    def with_node(self, index: int, **changes: Any) -> "State":
        nodes = list(self.nodes)
        nodes[index] = nodes[index]._replace(**changes)
        return self._replace(nodes=tuple(nodes))

    def get_epoch(self, number: int) -> Epoch | None:
        for epoch in self.epochs:
            if epoch.number == number:
                return epoch
        return None

    def list_members(self, epoch: Epoch) -> list[Node]:
        return [self.nodes[member.index] for member in epoch.members]


def _keep_newest(
    entries: frozenset[tuple[int, int]],
    oldest: int,
) -> frozenset[tuple[int, int]]:
    return frozenset(entry for entry in entries if entry[0] >= oldest)


def divide_ranks(epoch: Epoch, member: Member) -> tuple[range, int]:
    """Gives each node one rank, as the product does."""
    return epoch.divide_ranks(member, 1)


@dataclass(frozen=True, kw_only=True)
class Model:
    nodes: int = 3
    steps: int = 2
    deaths: int = 0
    notices: int = 0
    joins: int = 0
    min_nodes: int = 1
    divide: Callable[[Epoch, Member], tuple[range, int]] = divide_ranks
    agrees: bool = True
    """False: ranks stop once their own copy is complete, without waiting for those of others."""
    serves_until: Callable[..., bool] = has_restored
    offers: Callable[..., list[Offer]] = list_offers
    keeps_memory: bool = True
    """False: nodes drop their memory when they enter an epoch."""

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes, {self.steps} steps, {self.deaths} deaths,"
            f" {self.notices} notices, {self.joins} joins"
        )

    def start(self) -> State:
        nodes = (Node(epoch=1),) * self.nodes
        members = tuple(map(_make_member, range(self.nodes), nodes))
        return State(nodes=nodes, epochs=(Epoch(number=1, members=members),))

    def moves(self, state: State) -> Iterator[State]:
        if self._is_over(state):
            return
        newest = state.epochs[-1]
        yield from self._step(state, newest)
        for index, node in enumerate(state.nodes):
            if node.phase in ABSENT:
                if state.joins < self.joins:
                    yield self._come(state, index, node)
                continue
            if state.deaths < self.deaths and node.phase != "done":
                yield self._die(state, index, node)
            if state.notices < self.notices:
                yield from self._give_notice(state, index, node)
            move: Callable[[State, int, Node], Iterator[State]]
            move = getattr(self, f"_when_{node.phase}")
            yield from move(state, index, node)

    def check_end(self, state: State) -> None:
        assert self._is_over(state), f"stuck: {state}"

    def _is_over(self, state: State) -> bool:
        phases = {node.phase for node in state.nodes}
        return phases <= {"done", *ABSENT}

    def _come(self, state: State, index: int, node: Node) -> State:
        state = state._replace(joins=state.joins + 1)
        newcomer = Node(
            phase="asking",
            incarnation=node.incarnation + "'",
        )
        return state.with_node(index, **newcomer._asdict())

    def _give_notice(self, state: State, index: int, node: Node) -> Iterator[State]:
        if node.phase == "run" and not node.has_notice:
            after = state.with_node(index, has_notice=True)
            yield after._replace(notices=state.notices + 1)

    def _die(self, state: State, index: int, node: Node) -> State:
        member = _make_member(index, node)
        broken = set(state.broken)
        for epoch in state.epochs:
            if member in epoch.members:
                broken.add(epoch.number)
        state = state._replace(
            deaths=state.deaths + 1,
            broken=frozenset(broken),
        )
        dead = Node(phase="dead", incarnation=node.incarnation)
        return state.with_node(index, **dead._asdict())

    # The ranks of an epoch.

    def _step(self, state: State, epoch: Epoch) -> Iterator[State]:
        """Does a step, or decides to end the epoch at one, if all its ranks take part."""
        if epoch.number in state.broken or state.ending == epoch.number:
            return
        nodes = state.list_members(epoch)
        if not _are_running(nodes, epoch):
            return
        steps = {node.step for node in nodes}
        assert len(steps) == 1, f"ranks of one epoch are at steps {steps}: {state}"
        self._check_division(state, epoch)
        (step,) = steps
        has_notice = any(node.has_notice for node in nodes)
        if has_notice or self._find_joiners(state):
            after = self._stage(state, epoch, step)
            yield after._replace(ending=epoch.number)
        if not self._is_copied(state, epoch, step):
            return
        if step == self.steps:
            for member in epoch.members:
                state = state.with_node(member.index, phase="done")
            yield state
            return
        for member in epoch.members:
            state = state.with_node(member.index, step=step + 1)
        yield self._stage(state, epoch, step + 1)

    def _check_division(self, state: State, epoch: Epoch) -> None:
        sizes: set[int] = set()
        ranks: list[int] = []
        for member in epoch.members:
            ranks_of_node, size = self.divide(epoch, member)
            sizes.add(size)
            ranks.extend(ranks_of_node)
        (size,) = sizes
        assert sorted(ranks) == [*range(size)], f"ranks {ranks} of {size}: {state}"
        shards: list[int] = []
        for rank in ranks:
            shards.extend(share(SHARDS, rank, size))
        assert sorted(shards) == [*range(SHARDS)], f"shards {shards} of a step: {state}"

    def _stage(self, state: State, epoch: Epoch, step: int) -> State:
        """Stages a version on each node, unless it is there; the version before stays."""
        for member in epoch.members:
            shard = self._make_shard(epoch, member, step)
            staged = state.nodes[member.index].staged
            if shard in staged:
                continue
            newest = (*staged, shard)[-2:]
            state = state.with_node(member.index, staged=newest)
        return state

    def _make_shard(self, epoch: Epoch, member: Member, step: int) -> Shard:
        (rank,), size = self.divide(epoch, member)
        return Shard(
            step=step,
            epoch=epoch.number,
            size=size,
            rank=rank,
        )

    def _find_joiners(self, state: State) -> list[Member]:
        joiners: list[Member] = []
        for index, node in enumerate(state.nodes):
            if node.phase == "asking":
                joiners.append(_make_member(index, node))
        return joiners

    def _has_copy(self, state: State, epoch: Epoch, member: Member, step: int) -> bool:
        neighbor = self._find_neighbor(epoch, member)
        if neighbor == member.index or step == 0:
            return True
        shard = self._make_shard(epoch, member, step)
        return shard in state.nodes[neighbor].copies

    def _is_copied(self, state: State, epoch: Epoch, step: int) -> bool:
        steps = []
        for node in state.nodes:
            if node.epoch == epoch.number:
                steps.append(node.step)
        newest = max(steps, default=0)
        is_staged = False
        for node in state.list_members(epoch):
            for shard in node.staged:
                if shard.epoch == epoch.number and shard.step == newest:
                    is_staged = True
        if not is_staged:
            return True  # just restored
        return self._have_all_copies(state, epoch, step)

    def _have_all_copies(self, state: State, epoch: Epoch, step: int) -> bool:
        return all(self._has_copy(state, epoch, member, step) for member in epoch.members)

    def _find_neighbor(self, epoch: Epoch, member: Member) -> int:
        position = epoch.members.index(member)
        keeper = find_neighbor(position, [""] * len(epoch.members))
        return epoch.members[keeper].index

    def _when_run(self, state: State, index: int, node: Node) -> Iterator[State]:
        epoch = state.get_epoch(node.epoch)
        assert epoch
        member = _make_member(index, node)
        if node.staged and node.staged[-1].epoch == epoch.number:
            yield from self._upload(state, epoch, member)
        is_ending = state.ending >= epoch.number
        is_broken = epoch.number in state.broken
        if is_broken or (is_ending and self._may_stop(state, epoch, member)):
            yield state.with_node(index, phase="stopped")

    def _upload(self, state: State, epoch: Epoch, member: Member) -> Iterator[State]:
        """Announces the newest version of a node, then copies it to the neighbor."""
        node = state.nodes[member.index]
        newest = node.staged[-1]
        if newest not in node.announced:
            announced = node.announced | {newest}
            present = announced.intersection(node.staged)
            yield state.with_node(member.index, announced=present)
            return
        if self._has_copy(state, epoch, member, newest.step):
            return
        neighbor = self._find_neighbor(epoch, member)
        keeper = state.nodes[neighbor]
        if keeper.phase in ABSENT or keeper.epoch != epoch.number:
            return
        copies = _drop_old((*keeper.copies, newest), newest.rank)
        after = state.with_node(neighbor, copies=copies)
        if self._have_all_copies(after, epoch, newest.step):
            whole = max(after.whole, newest.step)
            after = after._replace(whole=whole)
        yield after

    def _may_stop(self, state: State, epoch: Epoch, member: Member) -> bool:
        """Tells whether the last step is in the memory of nodes, on which all ranks agree."""
        members = epoch.members if self.agrees else (member,)
        if self.agrees and not _are_running(state.list_members(epoch), epoch):
            return True  # they have agreed
        for other in members:
            node = state.nodes[other.index]
            if not node.staged or node.staged[-1] not in node.announced:
                return False
            if not self._has_copy(state, epoch, other, node.step):
                return False
        return True

    # The launchers.

    def _when_stopped(self, state: State, index: int, node: Node) -> Iterator[State]:
        if node.has_notice:
            yield state.with_node(index, phase="serving")
            return
        epoch = state.get_epoch(node.epoch)
        assert epoch
        me = _make_member(index, node)
        following = state.get_epoch(epoch.number + 1)
        if following:
            yield from self._enter(state, index, following)
            return
        staying: list[Member] = []
        for member in epoch.members:
            other = state.nodes[member.index]
            if other.phase in ABSENT or other.has_notice:
                continue
            if other.incarnation == member.incarnation:
                staying.append(member)
        if staying[0] != me:
            reported = state.reported | {(epoch.number, index)}
            yield state._replace(reported=reported)
            return
        reporters: set[int] = set()
        for number, reporter in state.reported:
            if number == epoch.number:
                reporters.add(reporter)
        proposal = successor(
            epoch,
            me,
            living=staying,
            reported=frozenset(reporters),
            joiners=self._find_joiners(state),
            patient=True,
            holding=True,
            min_members=self.min_nodes,
        )
        if proposal:
            epochs = (*state.epochs, proposal)
            yield state._replace(epochs=epochs[-3:])

    def _enter(self, state: State, index: int, epoch: Epoch) -> Iterator[State]:
        node = state.nodes[index]
        assert _make_member(index, node) in epoch.members, f"{index} was left out: {state}"
        entered = state.with_node(index, phase="restoring", epoch=epoch.number)
        if not self.keeps_memory:
            entered = entered.with_node(index, staged=(), copies=())
        yield entered

    def _when_asking(self, state: State, index: int, node: Node) -> Iterator[State]:
        newest = state.epochs[-1]
        if _make_member(index, node) in newest.members:
            yield from self._enter(state, index, newest)
            return
        phases = {other.phase for other in state.nodes}
        if phases <= {*ABSENT, "asking", "serving", "done"}:
            # No member is left that could take it in: a new gang restores from the bucket.
            yield state.with_node(index, phase="away")

    def _when_restoring(self, state: State, index: int, node: Node) -> Iterator[State]:
        epoch = state.get_epoch(node.epoch)
        assert epoch
        if epoch.number in state.broken:
            yield state.with_node(index, phase="stopped")
            return
        numbers = {other.epoch for other in state.list_members(epoch)}
        if numbers != {epoch.number}:
            return  # the ranks wait for all nodes
        number, step = state.choice
        if number != epoch.number:
            if epoch.lead.index == index:
                step = self._choose(state, epoch)
                # Until the next copies a further loss may need the bucket (infra/decisions/0136).
                yield state._replace(choice=(epoch.number, step), whole=0)
            return
        if self._is_readable(state, epoch, step):
            yield state.with_node(index, phase="read")
            return
        assert state.deaths, f"step {step} is chosen, and a shard is gone: {state}"
        # All ranks agree on another version.
        for member in epoch.members:
            state = state.with_node(member.index, phase="restoring")
        step = self._choose(state, epoch)
        yield state._replace(choice=(epoch.number, step))

    def _when_read(self, state: State, index: int, node: Node) -> Iterator[State]:
        """Begins to train once all ranks have read their part."""
        epoch = state.get_epoch(node.epoch)
        assert epoch
        if epoch.number in state.broken:
            yield state.with_node(index, phase="stopped")
            return
        phases = {other.phase for other in state.list_members(epoch)}
        if phases <= {"read", "run"}:
            restored = state.restored | {(epoch.number, index)}
            _, step = state.choice
            after = state.with_node(index, phase="run", step=step)
            yield after._replace(restored=restored)

    def _choose(self, state: State, epoch: Epoch) -> int:
        """Returns the step that the ranks of the epoch restore; 0: there is none."""
        shards_by_keeper = dict(enumerate(self._list_held(state, epoch)))
        fake_places: Any = SimpleNamespace(
            run="run",
            list_heads=lambda: shards_by_keeper,
        )
        offers = self.offers(fake_places, above=0, start=0)
        step = 0
        if offers:
            step = offers[0].step
        # At most one node was lost, so no two that keep each other's copies.
        if state.deaths <= 1:
            assert step >= state.whole, f"step {state.whole} was whole, {step} is found: {state}"
        reached = max(node.step for node in state.nodes)
        if not state.deaths:
            assert step == reached, f"step {reached} was done, {step} is restored: {state}"
        return step

    def _list_held(self, state: State, epoch: Epoch) -> Iterator[list[Record]]:
        """Yields what keepers hold: those of members, then those of nodes that leave."""
        indices = [member.index for member in epoch.members]
        for index, node in enumerate(state.nodes):
            if index not in indices and node.has_notice:
                indices.append(index)
        for index in indices:
            yield self._list_shards(state.nodes[index])

    def _list_shards(self, node: Node) -> list[Record]:
        shards: list[Record] = []
        for shard in node.staged:
            if shard in node.announced:
                shards.append(_describe_shard(shard, 0))
        for shard in node.copies:
            shards.append(_describe_shard(shard, -1))
        return shards

    def _is_readable(self, state: State, epoch: Epoch, step: int) -> bool:
        """Tells whether a rank that divides the version again finds every shard of it."""
        if not step:
            return True
        ranks: dict[tuple[int, int], set[int]] = {}
        for shards in self._list_held(state, epoch):
            for shard in shards:
                if shard["step"] != step:
                    continue
                key = (shard["start"], shard["world_size"])
                ranks_of_version = ranks.setdefault(key, set())
                ranks_of_version.add(shard["rank"])
        return any(len(present) == size for (_, size), present in ranks.items())

    def _when_serving(self, state: State, index: int, node: Node) -> Iterator[State]:
        statuses: dict[int, Record] = {}
        has_other = False
        for other, peer in enumerate(state.nodes):
            if peer.phase in ABSENT:
                continue
            statuses[other] = self._make_status(state, other, peer)
            if peer.phase not in ("serving", "asking") and not peer.has_notice:
                has_other = True
        # Its window ends too; if there are other nodes, that is not before they have restored.
        if self.serves_until(statuses, node.epoch) or not has_other:
            empty = Node(phase="left", incarnation=node.incarnation)
            yield state.with_node(index, **empty._asdict())

    def _make_status(self, state: State, index: int, node: Node) -> Record:
        """Makes the report of a node's launcher."""
        status: Record = {
            "index": index,
            "incarnation": node.incarnation,
        }
        epoch = state.get_epoch(node.epoch)
        if epoch and node.phase != "asking":
            status["epoch"] = asdict(epoch)
        if (node.epoch, index) in state.restored:
            status[RESTORED] = node.epoch
        return status

    def _when_done(self, state: State, index: int, node: Node) -> Iterator[State]:
        yield from ()


def _make_member(index: int, node: Node) -> Member:
    return Member(index=index, incarnation=node.incarnation)


def _are_running(nodes: list[Node], epoch: Epoch) -> bool:
    return all(node.phase == "run" and node.epoch == epoch.number for node in nodes)


def _describe_shard(shard: Shard, memory: int) -> Record:
    return {
        "rank": shard.rank,
        "step": shard.step,
        "start": shard.epoch,
        "attempt": f"{shard.epoch:012x}",
        "world_size": shard.size,
        "length": 1,
        "sha256": "0" * 64,
        "bytes": 1,
        "memory": memory,
    }


def _drop_old(copies: tuple[Shard, ...], rank: int) -> tuple[Shard, ...]:
    """Keeps the newest two copies of a rank, and other ranks' copies since the step before."""
    of_rank: list[Shard] = []
    of_others: list[Shard] = []
    for shard in copies:
        shards = of_rank if shard.rank == rank else of_others
        shards.append(shard)
    oldest = of_rank[-1].step - 1
    needed = [shard for shard in of_others if shard.step >= oldest]
    return (*needed, *of_rank[-2:])


@pytest.mark.parametrize(
    "model",
    [
        Model(notices=1),
        Model(notices=2, steps=1),
        Model(deaths=1),
        Model(deaths=1, joins=1, steps=1),
        Model(notices=1, joins=1, steps=1),
        pytest.param(Model(deaths=1, notices=1), marks=pytest.mark.process),
        pytest.param(Model(deaths=1, joins=1), marks=pytest.mark.process),
    ],
    ids=str,
)
def test_every_interleaving_divides_each_step_once_and_loses_no_whole_one(model: Model) -> None:
    assert explore(model) > 20


def leave_at_once(statuses: dict[int, Record], number: int) -> bool:
    """Leaves as soon as the others are in the next epoch."""
    for status in statuses.values():
        epoch = status.get("epoch", {})
        if epoch.get("number", 0) > number:
            return True
    return False


def number_by_index(epoch: Epoch, member: Member) -> tuple[range, int]:
    """Keeps each node's rank when another one is gone."""
    rank = member.index
    return range(rank, rank + 1), len(epoch.members)


def list_oldest_first(*arguments: Any, **options: Any) -> list[Offer]:
    offers = list_offers(*arguments, **options)
    return offers[::-1]


NOTICED = Model(notices=1)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        # Neighbors that leave together.
        (
            Model(notices=2, steps=1, serves_until=leave_at_once),
            "a shard is gone|was whole",
        ),
        (replace(NOTICED, agrees=False), "is restored|stuck"),
        (replace(NOTICED, divide=number_by_index), "ranks"),
        (
            replace(NOTICED, offers=list_oldest_first),
            "is restored|was whole",
        ),
        (replace(NOTICED, keeps_memory=False), "is restored|was whole"),
    ],
    ids=["leaves-early", "no-agreement", "ranks", "older", "forgets"],
)
def test_the_model_finds_a_broken_protocol(broken: Model, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        explore(broken)
