"""ElasticGang: data-parallel training that loses nodes, goes on with the others, and takes new ones
in.

    with ElasticGang(url, {"model": model, "optimizer": optimizer}, run="mine", shards=48) as gang:
        for step in gang.steps(1000):
            for shard in gang.shards():
                inputs, targets = batch(step, shard)
                gang.backward(loss(model(inputs), targets))
            if gang.reduce():
                optimizer.step()

One process for each GPU: `holdfast train ranks --processes 4 -- python train.py` starts those of a
node. Each holds the whole state, or those of a node share it (HSDP, tested with gloo only), by two
lines before the optimizer is made:

    mesh = join_node("cuda")  # of holdfast.training.gang.node
    fully_shard(model, mesh=mesh)

A state sharded over nodes needs the rigid gang (`holdfast train run`). A step is the same V shards
whatever the size, with the same draws (`shards()` seeds by step and shard); with exact=True the
weights too are the same bits for every sequence of sizes, with HSDP for as many processes in each
node.

A notice to one node costs the others one regrouping at the next step; a death costs the step in
progress. A newcomer gets the state from a member. The checkpoint is for the case that all are lost.
"""

# Why it is so: infra/decisions/0035.

import secrets
from collections.abc import Generator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from torch import Tensor

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.parts import checked_state
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.support.object_names import checked_run
from holdfast.training.elastic import shards as sharing
from holdfast.training.elastic.gang_member import Crew
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.elastic.shards import GangProgress
from holdfast.training.elastic.straggler_detection import ShardTimer
from holdfast.training.errors import GroupLost
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_addresses import Places, gang_id, read_places
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Member
from holdfast.training.gang.node import node_of, parameters_of
from holdfast.training.gang.peer_client import Peers
from holdfast.training.gang.process_group import Group, opening
from holdfast.training.gang.regroup import Regroup
from holdfast.training.gang.saves import GangSaves, open_store
from holdfast.training.tcp_gate import join_key
from holdfast.training.trainer.data import mixed_seed, seed_draws
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


class ElasticGang:
    """`places`: as the pod's environment states them if left out; without such a pod the gang is
    one process. A place also uses the port above its own. `shards`: cut of each step, 0 for six for
    each process. `every`: steps between checkpoints. `facts`: what must not differ when a run is
    resumed, such as a digest of its data and the samples of a shard. `gather_s`: how long a start
    or a newcomer waits for more; `hold_s`: how long too few wait; `silent_s`: when a member counts
    as lost whose machine does not answer, five times as long where only its process does not;
    `lag_s`: how long the others wait in a step for one that does answer, doubled where that was too
    short.
    """

    def __init__(
        self,
        url: str,
        state: dict[str, Any],
        *,
        run: str,
        places: Places | None = None,
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
        silent_s: float = 3.0,
        lag_s: float = 120.0,
        tuning: Tuning | None = None,
    ) -> None:
        pod = read_places() if places is None else places
        parameters = parameters_of(checked_state(state))
        # What shares one state is one member: the node, or each process by itself.
        node = self._node = node_of(parameters, pod.ranks_per_node, pod.index)
        self._shards = sharing.resolve_shards(shards, len(pod.nodes), node.size)
        self._members = len(pod.nodes) // node.size
        self._index = pod.index // node.size
        self._seed = seed
        # A flag for each member, for its notice, one by which the lead calls for a regrouping, and
        # each one's pace.
        self._gradients = (ExactGradientSum if exact else GradientSum)(
            parameters, flags=2 * self._members + 1
        )
        self._timer = ShardTimer(self._gradients.device, shards=self._shards)
        self._gather_s = gather_s
        self._window_s = window_s
        self._shutdown = notices.of_process()
        self._tuning = tuning or Tuning()
        self._stop_asked = lambda: self._shutdown.requested
        key = join_key(checked_run(run))
        peers = Peers(pod.nodes, key, ranks=node.size)
        storage = open_store(url, self._tuning, peers, hold_s=hold_s)
        progress = GangProgress(
            shards=self._shards,
            seed=seed,
            facts=facts,
            gradients=self._gradients,
        )
        saves = GangSaves(
            url,
            storage,
            run,
            state | {"gang": progress},
            gang=gang_id(pod.nodes),
            every=every,
            keep=keep,
            tuning=self._tuning,
            events=events if node.speaks else None,
            stop_asked=self._stop_asked,
            node=node,
        )
        me = Member(index=self._index, incarnation=node.decided(lambda: secrets.token_hex(8)))
        # Others reach only the rank that speaks for its node.
        port = peers.addresses[self._index][1] if node.speaks else 0
        with opening(port):
            self._control = Control(me, port, key)
        per_node = pod.ranks_per_node // node.size
        regroup = Regroup(
            storage,
            run,
            self._control,
            peers,
            Lag(lag_s),
            min_members=pod.min_nodes * per_node,
            gather_s=gather_s,
            hold_s=hold_s,
            stop_asked=self._stop_asked,
            silent_s=silent_s,
        )
        added_up = pod.nodes[node.rank :: node.size]
        device = self._gradients.device
        group = Group(
            added_up,
            me,
            device,
            key=key,
            beside_node=node.mesh is not None,
        )
        self._crew = Crew(
            regroup,
            group,
            saves,
            self._shutdown,
            silent_s=silent_s,
            window_s=window_s,
            members_per_node=per_node,
        )
        self._reduced = False
        self._own = 0
        self._called: frozenset[int] | None = None
        """Of the last reduction: who leaves; None: no member called for a regrouping."""

    @property
    def step(self) -> int:
        """Steps done, by this member's state."""
        return self._crew.step

    @property
    def shard_count(self) -> int:
        """V: shards of one step, over the whole gang."""
        return self._shards

    @property
    def world_size(self) -> int:
        return len(self._crew.epoch.members) * self._node.size

    @property
    def coordinator(self) -> bool:
        """One process of the gang, which may become another."""
        return self._crew.coordinator and self._node.speaks

    def __enter__(self) -> Self:
        self._shutdown.takes_s = self._window_s
        # A collective whose peer is gone may hang beyond the window; SIGKILL would then take the
        # event log along.
        self._shutdown.leave_after(self._window_s)
        self._shutdown.last_words = lambda: self._crew.last_words("in the middle of it")
        try:
            self._crew.join()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def steps(self, total: int) -> Generator[int]:
        """Numbers of the steps to do. One comes again when its reduction failed.

        Raises Preempted, on the nodes that have a notice; GangTooSmall when too few are left."""
        self._crew.check_total(total)
        while self.step < total:
            self._reduced = False
            self._called = None
            self._gradients.begin()
            self._timer.start()
            yield self.step
            if self._reduced:
                self._crew.done()
                if self._called is not None:
                    self._crew.resize(self._called)
        self._crew.finish(total, self._tuning.commit_timeout_s)

    def slowest(self) -> dict[str, Any]:
        """Since the last call, or in the newest five steps: `slowest_rank`, the place that takes
        longest for its share of a step, and `slowest_by`, how many times as long as the others;
        empty where nothing can be said. Fields of a `window` event.
        """
        return self._timer.describe_slowest()

    def shards(self) -> Generator[int]:
        """This member's shards of the step, each with torch's random state seeded for it."""
        # In sets of one for each rank of a node: FSDP2 adds up those in floats, the same ones
        # whatever the size.
        each = self._node.size
        step = self._crew.step
        device = self._gradients.device
        sets = sharing.share(self._shards // each, self._crew.rank, len(self._crew.epoch.members))
        mine = range(each * sets.start + self._node.rank, each * sets.stop + self._node.rank, each)
        self._own = len(mine)
        # All at once: between two shards the code would be out of the processor's cache each time.
        seeds = [mixed_seed(self._seed, step, shard) for shard in mine]
        for shard, seed in zip(mine, seeds, strict=True):
            seed_draws(seed, device)
            yield shard

    def backward(self, loss: Tensor) -> None:
        """`loss`: mean over one shard; the step's gradient is the mean over all shards."""
        # FSDP2 takes the mean over the ranks of a node.
        (loss / (self._shards // self._node.size)).backward()
        self._gradients.add_shard()

    def reduce(self) -> bool:
        """The gradient of the whole step into every `p.grad`. False: do not step the optimizer, the
        step comes again.
        """
        failpoint("gang.reduce")
        crew = self._crew
        flags = [0] * (2 * self._members + 1)
        # A notice travels with the gradients: all members learn of it at the same step, for no
        # message more.
        flags[self._index] = int(self._stop_asked() and self._node.speaks)
        flags[self._members] = int(self._newcomers_ready())
        # Before the sum: in it a fast member waits for the slow ones, and all would look equally
        # slow.
        units = self._timer.end_step(self._own, step=crew.step, epoch=crew.epoch.number)
        flags[self._members + 1 + self._index] = units
        try:
            with crew.together():
                numbers = self._gradients.reduce(flags, crew.group.handle, self._node)
        except (GroupLost, RuntimeError) as error:  # gloo's and nccl's errors both
            crew.lost(error)
            return False
        failpoint("gang.reduced")
        # Too large for the exact sum, on every member: the step comes again with a larger exponent.
        if numbers is None:
            return False
        if any(numbers[self._members + 1 :]):
            self._timer.record(
                numbers[self._members + 1 :], tuple(member.index for member in crew.epoch.members)
            )
        # Only now: a call that came while the sum was under way would be known to some members and
        # not to others.
        if any(numbers[: self._members + 1]):
            self._called = frozenset(member for member in range(self._members) if numbers[member])
        self._reduced = True
        return True

    def _newcomers_ready(self) -> bool:
        # Newcomers ask the lead alone.
        if not self.coordinator:
            return False
        joining = self._control.joining()
        # They come late and one by one, and each regrouping stops everybody.
        full = len(joining) + len(self._crew.epoch.members) >= self._members
        return bool(joining) and (full or self._control.joining_for_s() >= self._gather_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._shutdown.last_words = lambda: None
        if isinstance(error, CheckpointExit) and error.reason:
            self._crew.last_words(error.reason, ask=True)
        self._crew.close()
