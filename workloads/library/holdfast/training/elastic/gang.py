"""ElasticGang: data-parallel training that loses nodes, goes on with the others, and takes new ones in.

    with ElasticGang(url, {"model": model, "optimizer": optimizer}, run="mine", nodes=nodes, min_nodes=2) as gang:
        for step in gang.steps(1000):
            for shard in gang.shards():
                inputs, targets = batch(step, shard)
                gang.backward(loss(model(inputs), targets))
            if gang.reduce():
                optimizer.step()

Every process holds the whole state; sharded state, also inside a node, needs the rigid gang (`holdfast train run`).
One process for each GPU: `holdfast train ranks --processes 4 -- python train.py` starts those of a node. A step is the
same V shards whatever the size, with the same draws (`shards()` seeds by step and shard); with exact=True the weights
too are the same bits for every sequence of sizes.

A notice to one node costs the others one regrouping at the next step; a death costs the step in progress. A newcomer
gets the state from a member. The checkpoint is for the case that all are lost.
"""

# Why it is so: infra/decisions/0035.

import secrets
from collections.abc import Generator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.retrying import Retrying
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.stores import open_storage
from holdfast.checkpoint.tree import checked_state
from holdfast.contract.errors import InputError
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.object_names import checked_run
from holdfast.runtime import logs
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.training.data import mixed_seed
from holdfast.training.elastic import places
from holdfast.training.elastic import shards as sharing
from holdfast.training.elastic.control import Control, Peers
from holdfast.training.elastic.crew import Crew
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.elastic.group import Group, port_taken
from holdfast.training.elastic.membership import Member
from holdfast.training.elastic.places import Address
from holdfast.training.elastic.progress import GangProgress
from holdfast.training.elastic.regroup import Limits, Regroup
from holdfast.training.elastic.saves import GangSaves
from holdfast.training.rendezvous import join_id


class ElasticGang:
    def __init__(
        self,
        url: str,
        state: dict[str, Any],
        *,
        run: str,
        nodes: tuple[Address, ...] | None = None,
        index: int | None = None,
        min_nodes: int | None = None,
        ranks_per_node: int | None = None,
        shards: int = 0,
        exact: bool = False,
        every: int = 100,
        keep: int = 3,
        seed: int = 0,
        facts: Mapping[str, str | int] = MappingProxyType({}),
        events: EventLog | None = None,
        window_s: float = DEFAULT_WINDOW.pod_s,
        gather_s: float = 20.0,
        hold_s: float = 60.0,
        silent_s: float = 15.0,
        tuning: Tuning | None = None,
    ) -> None:
        """`nodes`: address of every place in the gang, `index` this one's; a place also uses the port above. A place is
        a process: `ranks_per_node` neighbouring ones are of one node. What of these and of `min_nodes` is left out is
        as the pod's environment states it, and without such a pod the gang is one process.
        `shards`: cut of each step, 0 for six for each process. `every`: steps between checkpoints. `facts`: what must not
        differ when a run is resumed, such as a digest of its data and the samples of a shard. `gather_s`: how long a
        start or a newcomer waits for more; `hold_s`: how long too few wait; `silent_s`: when a peer counts as lost."""
        given = places.of_pod()
        if ranks_per_node is None:
            ranks_per_node = given.ranks_per_node if nodes is None else 1
        nodes = given.nodes if nodes is None else nodes
        index = given.index if index is None else index
        min_nodes = given.min_nodes if min_nodes is None else min_nodes
        _check_ranks(ranks_per_node, nodes)
        sharing.checked_nodes(len(nodes) // ranks_per_node, min_nodes)
        _check_place(index, nodes)
        self._places, self._index, self._seed = len(nodes), index, seed
        self._gather_s, self._window_s = gather_s, window_s
        self._shards = sharing.checked_shards(shards, len(nodes))
        parameters = _parameters(checked_state(state))
        kind = ExactGradientSum if exact else GradientSum
        # A flag for each place, for its notice, and one by which the lead calls for a regrouping.
        self._gradients = kind(parameters, flags=len(nodes) + 1)
        self._shutdown = notices.of_process()
        self._tuning = tuning or Tuning()
        storage = Retrying(
            open_storage(url, request_s=self._tuning.request_s), budget_s=min(hold_s, self._tuning.retry_s)
        )
        _check_store(storage, url)
        progress = GangProgress(shards=self._shards, seed=seed, facts=facts, gradients=self._gradients)
        whole = state | {"gang": progress}
        saves = GangSaves(
            url,
            storage,
            checked_run(run),
            whole,
            gang=places.gang_id(nodes),
            every=every,
            keep=keep,
            tuning=self._tuning,
            events=events,
            stop_asked=lambda: self._shutdown.requested,
        )
        least = min_nodes * ranks_per_node
        limits = Limits(min_members=least, gather_s=gather_s, hold_s=hold_s, silent_s=silent_s)
        self._crew = self._assembled(run, nodes, storage, limits, whole, saves, events, ranks_per_node)
        self._reduced = False
        self._called: frozenset[int] | None = None
        """Of the last reduction: who leaves; None: nobody called for a regrouping."""

    def _assembled(
        self,
        run: str,
        nodes: tuple[Address, ...],
        storage: Storage,
        limits: Limits,
        state: dict[str, Any],
        saves: GangSaves,
        events: EventLog | None,
        ranks_per_node: int,
    ) -> Crew:
        me, secret = Member(index=self._index, incarnation=secrets.token_hex(8)), join_id(run)
        try:
            self._control = Control(me, nodes[self._index][1], secret)
        except OSError as error:
            raise port_taken(nodes[self._index][1], error) from error
        peers = Peers(nodes, secret)
        return Crew(
            state,
            self._gradients.device,
            control=self._control,
            peers=peers,
            regroup=Regroup(storage, run, self._control, peers, limits, stop_asked=lambda: self._shutdown.requested),
            group=Group(nodes, me, self._gradients.device, secret=secret, silent_s=limits.silent_s),
            saves=saves,
            shutdown=self._shutdown,
            window_s=self._window_s,
            events=events,
            ranks_per_node=ranks_per_node,
        )

    @property
    def step(self) -> int:
        """Steps done, by this member's state."""
        return self._crew.step

    @property
    def shard_count(self) -> int:
        """V: shards of one step, over the whole gang."""
        return self._shards

    @property
    def rank(self) -> int:
        return self._crew.epoch.members.index(self._crew.me)

    @property
    def world_size(self) -> int:
        return len(self._crew.epoch.members)

    @property
    def coordinator(self) -> bool:
        return self._crew.coordinator

    def __enter__(self) -> Self:
        self._shutdown.takes_s = self._window_s
        # A collective whose peer is gone may hang beyond the window; SIGKILL would then take the event log along.
        self._shutdown.leave_after(self._window_s)
        try:
            self._crew.join()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def steps(self, total: int) -> Generator[int]:
        """Numbers of the steps to do. One comes again when its reduction failed.

        Raises Preempted, on the nodes that have a notice; GangTooSmall when too few are left."""
        while self.step < total:
            self._reduced, self._called = False, None
            self._gradients.begin()
            yield self.step
            if self._reduced:
                self._crew.done()
                if self._called is not None:
                    self._crew.resize(self._called)
        self._crew.finish(total, self._tuning.commit_timeout_s)

    def shards(self) -> Generator[int]:
        """This member's shards of the step, each with torch's random state seeded for it."""
        for shard in sharing.share(self._shards, self.rank, self.world_size):
            torch.manual_seed(mixed_seed(self._seed, self.step, shard))
            yield shard

    def backward(self, loss: Tensor) -> None:
        """`loss`: mean over one shard; the step's gradient is the mean over all shards."""
        (loss / self._shards).backward()
        self._gradients.add_shard()

    def reduce(self) -> bool:
        """The gradient of the whole step into every `p.grad`. False: do not step the optimizer, the step comes again."""
        failpoint("gang.reduce")
        # A notice travels with the gradients: all members learn of it at the same step, for no message more.
        leaves = [int(self._shutdown.requested and place == self._index) for place in range(self._places)]
        try:
            flags = self._gradients.reduce([*leaves, int(self._newcomers_ready())])
        except RuntimeError as error:  # gloo's and nccl's errors both
            self._crew.lost(error)
            return False
        failpoint("gang.reduced")
        # Too large for the exact sum, on every member alike: the step comes again with a larger exponent.
        if flags is None:
            return False
        # Only now: a call that came while the sum was under way would be known to some members and not to others.
        if any(flags):
            self._called = frozenset(place for place, flag in enumerate(flags[:-1]) if flag)
        self._reduced = True
        return True

    def _newcomers_ready(self) -> bool:
        if not self.coordinator:
            return False
        joining = self._control.joining()
        # They come late and one by one, and each regrouping stops everybody.
        full = len(joining) + self.world_size >= self._places
        return bool(joining) and (full or self._control.joining_for_s() >= self._gather_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, CheckpointExit) and error.reason:
            logs.error("gang", f"leaving at step {error.step}: {error.reason}")
        self._crew.close()


def _check_place(index: int, nodes: tuple[Address, ...]) -> None:
    if not 0 <= index < len(nodes):
        raise InputError(
            "place in the gang", got=index, allowed=f"0 to {len(nodes) - 1}", fix="JOB_COMPLETION_INDEX of the pod"
        )


def _check_ranks(ranks_per_node: int, nodes: tuple[Address, ...]) -> None:
    if ranks_per_node < 1 or len(nodes) % ranks_per_node:
        raise InputError(
            "processes of a node", got=f"{ranks_per_node} with {len(nodes)} addresses",
            allowed="a number that divides the addresses: every node has as many",
            fix="an address for each process, node by node",
        )  # fmt: skip


def _check_store(storage: Storage, url: str) -> None:
    if not storage.create_only:
        raise InputError(
            "the checkpoint storage cannot keep two halves of a gang apart",
            got=f"{url}, which overwrites a name that is taken",
            allowed="a store that refuses it: gs://, az://, Amazon's s3://, or a folder",
            fix="another --checkpoints, or train as a rigid gang: holdfast train run",
        )


def _parameters(state: dict[str, Any]) -> list[nn.Parameter]:
    """Of all modules, each held whole."""
    modules = [entry for entry in state.values() if isinstance(entry, nn.Module)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    if not parameters:
        raise InputError(
            "nothing to train", got="no nn.Module in the state", allowed="at least one", fix='{"model": model, ...}'
        )
    odd = next((p for p in parameters if type(p.data) is not Tensor), None)
    if odd is not None:
        raise InputError(
            "the model is sharded over processes",
            got=type(odd.data).__name__,
            allowed="parameters that every process holds whole: a lost node would take its shard along, and the "
            "processes of one node share no group that outlives a change of the gang",
            fix="a rigid gang: holdfast train run; or, where one GPU holds the model, no fully_shard: holdfast train ranks",
        )
    return parameters
