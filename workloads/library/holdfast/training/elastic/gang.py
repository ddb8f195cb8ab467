"""ElasticGang: data-parallel training that continues without lost nodes and admits new ones.

    with ElasticGang(url, {"model": model, "optimizer": optimizer}, run="mine", shards=48) as gang:
        for step in gang.steps(1000):
            for shard in gang.shards():
                inputs, targets = batch(step, shard)
                gang.backward(loss(model(inputs), targets))
            if gang.reduce():
                optimizer.step()

There is one process for each GPU: `holdfast train ranks --processes 4 -- python train.py` starts
those of a node. Each holds the whole state, or the processes of a node share it (HSDP, tested with
gloo only), with two lines before the optimizer is created:

    mesh = join_node("cuda")  # from holdfast.training.gang.node
    fully_shard(model, mesh=mesh)

A state sharded over nodes needs the rigid gang (`holdfast train run`). A step is the same V shards
for any size of the gang, with the same draws (`shards()` seeds by step and shard). With exact=True
the weights too are bit-identical for every sequence of sizes, with HSDP for the same number of
processes per node. BatchNorm normalizes each shard by itself, and its running statistics are those
of all shards of a step.

A notice to one node costs the others one regrouping at the next step; a lost node costs the step in
progress. A newcomer copies the state of a member. The checkpoint is needed only if all are lost.
"""

# Why it is so: infra/decisions/0035.

import secrets
from collections.abc import Generator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from torch import Tensor, nn

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.state import checked_state
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.support.object_names import checked_run
from holdfast.training.elastic import shards as sharing
from holdfast.training.elastic.gang_member import GangMember
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.elastic.shards import GangProgress
from holdfast.training.elastic.step_checks import StepChecks
from holdfast.training.elastic.straggler_detection import ShardTimer
from holdfast.training.errors import GroupLost
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_addresses import Places, gang_id, read_places
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Member
from holdfast.training.gang.node import collect_modules, collect_parameters, find_node
from holdfast.training.gang.peer_client import Peers
from holdfast.training.gang.process_group import Group, opening
from holdfast.training.gang.regroup import Regroup
from holdfast.training.gang.running_statistics import RunningStatistics
from holdfast.training.gang.saves import GangSaves, open_store
from holdfast.training.tcp_gate import join_key
from holdfast.training.trainer.data import mix_seed, seed_draws
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


class ElasticGang:
    """A member of an elastic gang, as a context manager around the training loop.

        state = {"model": model, "optimizer": optimizer}
        with ElasticGang("gs://bucket/runs", state, run="run-7", shards=48) as gang:
            for step in gang.steps(1000):
                for shard in gang.shards():
                    inputs, targets = batch(step, shard)
                    gang.backward(loss(model(inputs), targets))
                if gang.reduce():
                    optimizer.step()

    Args:
        url: Where checkpoints and the gang's epochs are stored.
        state: The entries to train, copy and save.
        run: Name of the run.
        places: Addresses of the gang's processes; each also uses the port above its own. By default
            they are read from the pod's environment, without which the gang is one process.
        shards: Number of shards of each step; 0 stands for six for each process.
        exact: Whether the weights have to be bit-identical for every sequence of sizes.
        every: Steps between checkpoints.
        keep: Number of checkpoints kept.
        seed: Seed of the draws.
        facts: Values that must not change when the run is resumed, such as a digest of its data.
        events: Log of the run's events.
        window_s: Seconds from SIGTERM to SIGKILL.
        gather_s: Seconds that a start or a newcomer waits for more members.
        hold_s: Seconds that too few members wait.
        silent_s: Seconds after which a member on an unreachable machine counts as lost; five times
            as long if the machine is reachable and the process does not answer.
        lag_s: Seconds that members wait in a step for one that answers; doubled if it was too
            short.
        tuning: Further settings of checkpoints.
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
        parameters = collect_parameters(checked_state(state))
        # Processes that share one state are one member: a node, or a single process.
        node = find_node(parameters, pod.ranks_per_node, pod.index)
        self._node = node
        self._shards = sharing.resolve_shards(shards, len(pod.nodes), node.size)
        self._member_count = len(pod.nodes) // node.size
        self._index = pod.index // node.size
        self._seed = seed
        self._checks: StepChecks | None = None
        if exact:
            device = parameters[0].device
            sets = self._shards // node.size
            self._checks = StepChecks(sets=sets, member=self._index, device=device, node=node)
        self._gradients = self._make_gradients(parameters)
        self._statistics = RunningStatistics(
            collect_modules(checked_state(state)),
            shards=self._shards,
            exact=exact,
            is_batch_over_ranks=node.size > 1,
        )
        self._timer = ShardTimer(self._gradients.device, shards=self._shards)
        self._gather_s = gather_s
        self._window_s = window_s
        self._tuning = tuning or Tuning()
        self._stop_asked = lambda: self._shutdown.requested
        key = join_key(checked_run(run))
        peers = Peers(pod.nodes, key, ranks=node.size)
        storage = open_store(
            url,
            self._tuning,
            peers,
            hold_s=hold_s,
        )
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
            events=events if node.is_speaker else None,
            stop_asked=self._stop_asked,
            node=node,
        )
        incarnation = node.agree(lambda: secrets.token_hex(8))
        me = Member(index=self._index, incarnation=incarnation)
        self._control = self._listen(me, peers, key)
        members_per_node = pod.ranks_per_node // node.size
        regroup = Regroup(
            storage,
            run,
            self._control,
            peers,
            Lag(lag_s),
            min_members=pod.min_nodes * members_per_node,
            gather_s=gather_s,
            hold_s=hold_s,
            stop_asked=self._stop_asked,
            silent_s=silent_s,
        )
        # The processes with this local rank: gradients are summed over them.
        group_addresses = pod.nodes[node.rank :: node.size]
        group = Group(
            group_addresses,
            me,
            self._gradients.device,
            key=key,
            has_node_group=node.mesh is not None,
        )
        # Last, since nothing may fail after it: a gang that is refused leaves the signals alone.
        self._took_signals = not notices.is_installed()
        self._shutdown = notices.of_process()
        self._member = GangMember(
            regroup,
            group,
            saves,
            self._shutdown,
            silent_s=silent_s,
            window_s=window_s,
            members_per_node=members_per_node,
            checks=self._checks,
        )
        self._is_reduced = False
        self._my_shard_count = 0
        self._set = 0
        """Number of the set of the shard that is being computed."""
        self._leaving: frozenset[int] | None = None
        """Members that leave after this step; None if no member called for a regrouping."""
        self._wrong_member: int | None = None
        """The member whose gradients were wrong in a step that was done again."""

    def _make_gradients(self, parameters: list[nn.Parameter]) -> GradientSum | ExactGradientSum:
        """Creates the sum of gradients over the gang, exact if steps are checked.

        Flags travel with it: a notice for each member, the lead's call for a regrouping, the time
        per shard of each member, and those of the checks.
        """
        flag_count = 2 * self._member_count + 1
        if self._checks is None:
            return GradientSum(parameters, flags=flag_count)
        return ExactGradientSum(parameters, flags=flag_count + self._checks.slots)

    def _listen(self, me: Member, peers: Peers, key: bytes) -> Control:
        """Opens the port on which other members reach this one: only the node's speaker has one."""
        _, speaker_port = peers.addresses[self._index]
        port = speaker_port if self._node.is_speaker else 0
        with opening(port):
            return Control(me, port, key)

    @property
    def step(self) -> int:
        """Number of steps that this member's state has."""
        return self._member.step

    @property
    def shard_count(self) -> int:
        """Number of shards of one step, over the whole gang."""
        return self._shards

    @property
    def world_size(self) -> int:
        return len(self._member.epoch.members) * self._node.size

    @property
    def coordinator(self) -> bool:
        """True on one process of the gang; another may take over."""
        return self._member.coordinator and self._node.is_speaker

    def __enter__(self) -> Self:
        self._shutdown.takes_s = self._window_s
        # A collective with a lost peer may hang beyond the window; SIGKILL would then lose the
        # event log.
        self._shutdown.leave_after(self._window_s)
        self._shutdown.last_words = lambda: self._member.log_departure("in the middle of it")
        try:
            self._member.join()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def steps(self, total: int) -> Generator[int]:
        """Yields the numbers of the steps to do, and one again if its reduction failed.

        Raises Preempted on nodes with a notice, and GangTooSmall if too few members remain.
        """
        self._member.check_total(total)
        while self.step < total:
            self._is_reduced = False
            self._leaving = None
            self._wrong_member = None
            self._gradients.begin()
            if self._statistics.is_active:
                self._statistics.begin_step()
            self._timer.start()
            yield self.step
            if not self._is_reduced:
                if self._wrong_member is not None:
                    self._member.leave_out(self._wrong_member)
                continue
            self._member.complete_step()
            if self._leaving is not None:
                self._member.resize(self._leaving)
        self._member.finish(total, self._tuning.commit_timeout_s)

    def slowest(self) -> dict[str, Any]:
        """Returns fields of a `window` event: `slowest_rank`, the member that takes longest for its
        share of a step, and `slowest_by`, its ratio to the others.

        They cover the steps since the last call, or the newest five. Empty if nothing is known.
        """
        return self._timer.describe_slowest()

    def shards(self) -> Generator[int]:
        """Yields this member's shards of the step, each with torch's random state seeded for it."""
        # Shards are assigned in sets of one for each rank of a node: FSDP2 sums a set in floats, so
        # a set has to be the same for any size of the gang.
        set_size = self._node.size
        set_count = self._shards // set_size
        epoch = self._member.epoch
        member_count = len(epoch.members)
        rank = self._member.rank
        step = self._member.step
        if self._checks:
            self._checks.begin_try(step)
            # Each try of a step gives a shard to another member, to check the one before.
            rank = (rank + epoch.number + self._checks.tries) % member_count
        sets = sharing.share(set_count, rank, member_count)
        first = set_size * sets.start + self._node.rank
        end = set_size * sets.stop + self._node.rank
        my_shards = range(first, end, set_size)
        self._my_shard_count = len(my_shards)
        # All seeds at once: between two shards this code would have left the processor's cache.
        seeds = [mix_seed(self._seed, step, shard) for shard in my_shards]
        for shard, seed in zip(my_shards, seeds, strict=True):
            seed_draws(seed, self._gradients.device)
            if self._statistics.is_active:
                self._statistics.begin_shard()
            self._set = shard // set_size
            yield shard

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients of a shard's mean loss and adds them to those of the step.

        The step's gradient is the mean over all shards.
        """
        # FSDP2 takes the mean over the ranks of a node.
        set_count = self._shards // self._node.size
        (loss / set_count).backward()
        self._gradients.add_shard()
        if self._checks and isinstance(self._gradients, ExactGradientSum):
            self._checks.note(self._set, self._gradients.shard_digest)
        if self._statistics.is_active:
            self._statistics.add_shard()

    def reduce(self) -> bool:
        """Sums the gradients of the step over the gang into every `p.grad`.

        Returns False if the step is repeated: the optimizer must not step then.
        """
        failpoint("gang.reduce")
        member = self._member
        call_flag = self._member_count
        first_time_flag = self._member_count + 1
        flags = [0] * (2 * self._member_count + 1)
        # A notice travels with the gradients: all members learn of it at the same step, without
        # another message.
        flags[self._index] = int(self._stop_asked() and self._node.is_speaker)
        flags[call_flag] = int(self._are_newcomers_ready())
        # Measured before the all-reduce, in which a fast member waits for the slow ones: all would
        # look equally slow.
        flags[first_time_flag + self._index] = self._timer.end_step(
            self._my_shard_count, step=member.step, epoch=member.epoch.number
        )
        if self._checks:
            flags += self._checks.sign()
        try:
            with member.watch_collectives():
                numbers = self._gradients.reduce(
                    flags,
                    member.group.handle,
                    self._node,
                    statistics=self._statistics.sums,
                )
        except (GroupLost, RuntimeError) as error:  # gloo's and nccl's errors both
            # Before another member copies the state, which is that of the step before.
            self._statistics.abandon_step()
            member.recover(error)
            return False
        failpoint("gang.reduced")
        if self._checks and self._is_disputed(self._checks):
            self._statistics.abandon_step()
            return False
        # Some gradient does not fit the exact sum: the step is repeated with a larger exponent.
        if numbers is None:
            self._statistics.abandon_step()
            return False
        if self._statistics.is_active:
            self._node.add(self._statistics.sums)
            self._statistics.end_step()
        times = numbers[first_time_flag : first_time_flag + self._member_count]
        if any(times):
            indices = tuple(peer.index for peer in member.epoch.members)
            self._timer.record(times, indices)
        # Decided by the summed flags: a call that came during the all-reduce would be known to some
        # members only.
        if any(numbers[:first_time_flag]):
            notices_by_member = numbers[:call_flag]
            leaving = [index for index, flag in enumerate(notices_by_member) if flag]
            self._leaving = frozenset(leaving)
        self._is_reduced = True
        return True

    def _is_disputed(self, checks: StepChecks) -> bool:
        """Returns whether this try of the step differs from those before, and must be repeated."""
        assert isinstance(self._gradients, ExactGradientSum)
        size = len(self._member.epoch.members)
        verdict = checks.compare(self._gradients.flags_of_try[-checks.slots :], size)
        if verdict.disputed:
            self._member.log_dispute(verdict)
        if verdict.repeats:
            self._gradients.restart_step()
            self._wrong_member = verdict.wrong_member
        return verdict.repeats

    def _are_newcomers_ready(self) -> bool:
        """Returns whether the lead regroups after this step to admit newcomers."""
        # Newcomers ask the lead only.
        if not self.coordinator:
            return False
        joiners = self._control.get_joiners()
        if not joiners:
            return False
        # Newcomers come late and one by one, and each regrouping stops all members: wait for more.
        is_complete = len(joiners) + len(self._member.epoch.members) >= self._member_count
        return is_complete or self._control.get_join_wait_s() >= self._gather_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self._shutdown.last_words = lambda: None
        try:
            if isinstance(error, CheckpointExit) and error.reason:
                self._member.log_departure(error.reason, poll=True)
            self._member.close()
        finally:
            if self._took_signals:  # otherwise a launcher needs them
                self._shutdown.uninstall()
