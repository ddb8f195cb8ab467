"""ElasticGang: data-parallel training that loses nodes, goes on with the others, and takes new ones in.

    with ElasticGang(url, {"model": model, "optimizer": optimizer}, run="mine", nodes=nodes, min_nodes=2) as gang:
        for step in gang.steps(1000):
            for shard in gang.shards():
                inputs, targets = batch(step, shard)
                gang.backward(loss(model(inputs), targets))
            if gang.reduce():
                optimizer.step()

Every node holds the whole state; state sharded over nodes needs the rigid gang (`holdfast train run`). One process
for each node. A step is the same V shards whatever the size, with the same draws (`shards()` seeds by step and shard);
with exact=True the weights too are the same bits for every sequence of sizes.

A notice to one node costs the others one regrouping at the next step; a death costs the step in progress. A newcomer
gets the state from a member. The checkpoint is for the case that all are lost.
"""

# Why it is so: infra/decisions/0035.

import math
import os
import secrets
import time
from collections.abc import Generator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.checkpoint.errors import CheckpointExit, Preempted
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.retrying import Retrying
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores import open_storage
from holdfast.checkpoint.tree import checked_state
from holdfast.contract.environment import ENV_ATTEMPT
from holdfast.contract.errors import InputError
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.object_names import checked_run
from holdfast.runtime import logs
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.training.data import mixed_seed
from holdfast.training.elastic import shards as sharing
from holdfast.training.elastic.control import Address, Control, Peers
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.elastic.group import Group, GroupLost, port_taken
from holdfast.training.elastic.membership import Epoch, Member
from holdfast.training.elastic.progress import GangProgress
from holdfast.training.elastic.regroup import Expelled, GangTooSmall, Regroup
from holdfast.training.elastic.saves import GangSaves
from holdfast.training.elastic.transfer import furthest, synchronize

NO_STATE = -1
FAREWELL_S = 5.0


class ElasticGang:
    def __init__(
        self,
        url: str,
        state: dict[str, Any],
        *,
        run: str,
        nodes: tuple[Address, ...],
        index: int,
        min_nodes: int = 1,
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
        """`nodes`: address of every place in the Job, `index` this one's; a node also uses the port above.
        `shards`: cut of each step, 0 for six for each node. `every`: steps between checkpoints. `facts`: what must not
        differ when a run is resumed, such as a digest of its data. `gather_s`: how long a
        start or a newcomer waits for more; `hold_s`: how long too few wait; `silent_s`: when a peer counts as lost."""
        sharing.checked_nodes(len(nodes), min_nodes)
        if not 0 <= index < len(nodes):
            raise InputError(
                "place in the gang", got=index, allowed=f"0 to {len(nodes) - 1}", fix="JOB_COMPLETION_INDEX of the pod"
            )
        self._nodes, self._me = nodes, Member(index=index, incarnation=secrets.token_hex(8))
        self._shards = sharing.checked_shards(shards, len(nodes))
        self._seed, self._events, self._window_s, self._silent_s = seed, events, window_s, silent_s
        self._gather_s = gather_s
        modules = [entry for entry in checked_state(state).values() if isinstance(entry, nn.Module)]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        _check_replicated(parameters)
        kind = ExactGradientSum if exact else GradientSum
        # A flag for each place, for its notice, and one by which the lead calls for a regrouping.
        self._gradients = kind(parameters, flags=len(nodes) + 1)
        progress = GangProgress(shards=self._shards, seed=seed, facts=facts, gradients=self._gradients)
        self._state = state | {"gang": progress}
        self._shutdown = notices.of_process()
        tuning = tuning or Tuning()
        storage = Retrying(open_storage(url, request_s=tuning.request_s), budget_s=min(hold_s, tuning.retry_s))
        self._saves = GangSaves(
            url,
            storage,
            checked_run(run),
            self._state,
            every=every,
            keep=keep,
            tuning=tuning,
            events=events,
            stop_asked=lambda: self._shutdown.requested,
        )
        try:
            self._control = Control(self._me, nodes[index][1])
        except OSError as error:
            raise port_taken(nodes[index][1], error) from error
        self._peers = Peers(nodes)
        self._regroup = Regroup(
            storage,
            run,
            self._control,
            self._peers,
            min_nodes=min_nodes,
            gather_s=gather_s,
            hold_s=hold_s,
            silent_s=silent_s,
            stop_asked=lambda: self._shutdown.requested,
        )
        self._group = Group(nodes, self._me, self._gradients.device, silent_s=silent_s)
        self.step = NO_STATE
        """Steps done, by this member's state."""
        self._led = False
        self._reduced = False
        self._called: frozenset[int] | None = None
        """Of the last reduction: who leaves; None: nobody called for a regrouping."""
        self._epoch = Epoch(number=0, members=(self._me,))

    @property
    def shard_count(self) -> int:
        """V: shards of one step, over the whole gang."""
        return self._shards

    @property
    def rank(self) -> int:
        return self._epoch.members.index(self._me)

    @property
    def world_size(self) -> int:
        return len(self._epoch.members)

    @property
    def coordinator(self) -> bool:
        return self._epoch.lead == self._me

    def __enter__(self) -> Self:
        self._shutdown.takes_s = self._window_s
        self._shutdown.leave_after(self._window_s)
        self._enter(self._regroup.first(), began=time.monotonic())
        return self

    def steps(self, total: int) -> Generator[int]:
        """Numbers of the steps to do. One comes again when its reduction failed.

        Raises Preempted, on the nodes that have a notice; GangTooSmall when too few are left."""
        while self.step < total:
            self._reduced, self._called = False, None
            self._gradients.begin()
            yield self.step
            if self._reduced:
                self.step += 1
                self._saves.after_step(self.step)
                if self._called is not None:
                    self._resize(self._called)
        self._finish(total)

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
        leaves = [int(self._shutdown.requested and index == self._me.index) for index in range(len(self._nodes))]
        try:
            flags = self._gradients.reduce([*leaves, int(self._newcomers_ready())])
        except RuntimeError as error:  # gloo's and nccl's errors both
            self._lost(error)
            return False
        failpoint("gang.reduced")
        if flags is None:
            return False
        if any(flags):
            self._called = frozenset(index for index, flag in enumerate(flags[:-1]) if flag)
        self._reduced = True
        return True

    def _newcomers_ready(self) -> bool:
        if not self.coordinator:
            return False
        joining = self._control.joining()
        # They come late and one by one, and each regrouping stops everybody.
        full = len(joining) + self.world_size >= len(self._nodes)
        return bool(joining) and (full or self._control.joining_for_s() >= self._gather_s)

    def _resize(self, leaving: frozenset[int]) -> None:
        """At a step that all have done. The leavers' state is the others' as well, so nothing is lost."""
        began = time.monotonic()
        if leaving >= {member.index for member in self._epoch.members}:
            self._leave()
        if self._me.index in leaving:
            self._saves.follow()
            self._group.close()
            logs.info("stop", f"leaving at step {self.step}: the gang has the state")
            self._emit_stop()
            raise Preempted(self.step)
        self._group.close()
        self._go_on(leaving, began)

    def _lost(self, error: RuntimeError) -> None:
        began = time.monotonic()
        logs.warning("gang", f"a member was lost in step {self.step}: {str(error)[:160]}")
        self._group.close()
        self._go_on(frozenset(), began)

    def _go_on(self, without: frozenset[int], began: float) -> None:
        try:
            epoch = self._regroup.after(self._epoch, without=without)
        except Expelled:
            logs.warning("gang", "the gang went on without this node: asking to come in again")
            self._saves.follow()
            self.step = NO_STATE
            epoch = self._regroup.first()
        self._enter(epoch, began=began)

    def _enter(self, epoch: Epoch, *, began: float) -> None:
        """Meet the members of `epoch`, or of the one after if somebody is lost meanwhile, and hold what they hold."""
        while True:
            self._epoch = epoch
            try:
                self._group.open(epoch)
                self._hold_what_others_hold()
                break
            except (GroupLost, RuntimeError) as error:
                logs.warning("gang", f"epoch {epoch.number} was lost while it met: {str(error)[:160]}")
                self._group.close()
            epoch = self._after_lost_epoch(epoch)
        if self.coordinator:
            self._emit_start()
            self._saves.lead(self.step)
            self._emit_resized(time.monotonic() - began)
        else:
            self._saves.follow()
        if epoch.ending:
            self._saves.try_last(self.step, self._seconds_left())
            raise GangTooSmall(
                self.step, f"{self.world_size} of {len(self._nodes)} nodes are left, too few for too long"
            )

    def _after_lost_epoch(self, epoch: Epoch) -> Epoch:
        try:
            return self._regroup.after(epoch)
        except Expelled:
            self._saves.follow()
            self.step = NO_STATE
            return self._regroup.first()

    def _hold_what_others_hold(self) -> None:
        failpoint("gang.synchronize")
        if self.coordinator and self.step == NO_STATE:
            self._control.enter(self._epoch, "restoring")
        # A gang of newcomers has nobody to ask: its lead takes up the newest checkpoint, and gives it to the others.
        if furthest(self.step) == NO_STATE:
            self._restore_on_lead()
        self.step = synchronize(self._state, self.step, self._gradients.device)

    def _restore_on_lead(self) -> None:
        # Not in a collective: a restore may take minutes, and a silent peer counts as lost after seconds.
        if self.coordinator:
            self.step = self._saves.restore()
            self._control.enter(self._epoch, "member")
        while not self.coordinator:
            lead = self._peers.ask(self._epoch.lead.index, "/status", 1.0)
            if not lead or lead.get("incarnation") != self._epoch.lead.incarnation:
                raise GroupLost("the lead was lost while it restored")
            if lead.get("phase") == "member":
                return
            time.sleep(0.05)

    def _leave(self) -> None:
        """All have a notice: the state goes to the storage, as much of it as the window allows."""
        self._saves.try_last(self.step, self._seconds_left())
        self._emit_stop()
        raise Preempted(self.step)

    def _finish(self, total: int) -> None:
        """The last step is done on all: complete only once its checkpoint is committed, by whichever lead is left."""
        self._group.close()
        stayers = [*self._epoch.members]
        while True:
            lead = next(iter(self._peers.living(stayers)), self._me)
            if lead == self._me:
                self._saves.lead(total)
                self._saves.make_durable(total, Tuning().commit_timeout_s)
                self._control.enter(self._epoch, "complete")
                self._await_farewells([m for m in stayers if m != self._me])
                return
            status = self._peers.ask(lead.index, "/status", 1.0) or {}
            if status.get("phase") == "complete":
                self._peers.ask(lead.index, "/farewell", 1.0, index=self._me.index)
                return
            time.sleep(0.05)

    def _await_farewells(self, others: list[Member]) -> None:
        """A member that has not seen the end would save it once more, and find nobody."""
        ends = time.monotonic() + FAREWELL_S
        while time.monotonic() < ends:
            gone = self._control.farewells()
            if not self._peers.living([m for m in others if m.index not in gone]):
                return
            self._control.wait(0.1)

    def _seconds_left(self) -> float:
        left = self._shutdown.seconds_left(self._window_s)
        return self._window_s if math.isinf(left) else max(0.1, left)

    def _emit_start(self) -> None:
        """Once for each process that ever leads: the account of a run follows its lead."""
        if self._events and not self._led:
            self._led = True
            attempt = int(os.environ.get(ENV_ATTEMPT, "0"))
            self._events.emit("start", rank=0, world_size=self.world_size, attempt=attempt)

    def _emit_stop(self) -> None:
        if self._events and self.coordinator:
            self._events.emit("stop", step=self.step, reason=self._shutdown.reason)

    def _emit_resized(self, seconds: float) -> None:
        if self._events:
            self._events.emit(
                "resized", step=self.step, nodes=self.world_size, of=len(self._nodes), seconds=round(seconds, 3)
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, CheckpointExit) and error.reason:
            logs.error("gang", f"leaving at step {error.step}: {error.reason}")
        self._saves.close()
        self._group.close()
        self._control.close()


def _check_replicated(parameters: list[nn.Parameter]) -> None:
    if not parameters:
        raise InputError(
            "nothing to train", got="no nn.Module in the state", allowed="at least one", fix='{"model": model, ...}'
        )
    odd = next((p for p in parameters if type(p.data) is not Tensor), None)
    if odd is not None:
        raise InputError(
            "the model is sharded over processes",
            got=type(odd.data).__name__,
            allowed="parameters that every node holds whole: a lost node would take its shard along",
            fix="train sharded models as a rigid gang: holdfast train run",
        )
