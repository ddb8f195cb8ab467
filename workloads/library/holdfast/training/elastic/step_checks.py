"""Compares the tries of a step of an exact gang, over all members.

The digest of each shard is one more number in the gradient sum, so all members know those of a try
without a message. A try that failed is known only to those who computed it: members tell each other
what they computed when the next epoch begins.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from holdfast.training.gang.membership import Epoch
from holdfast.training.gang.node import ALONE, Node
from holdfast.training.gang.recomputation import (
    INCOMPARABLE,
    Computation,
    Computations,
    fold,
    identify_kind,
)

MOST_SETS = 1_024
"""Most sets of shards that are compared in a step; those after them are not checked."""
_MEMBER_BITS = 17
_NO_STEP = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of comparing all tries of a step."""

    disputed: int = 0
    """Number of sets of shards whose digests differ."""
    suspects: tuple[int, ...] = ()
    """Members that each explain all differences on their own: one of them was wrong."""
    repeats: bool = False
    """True if the step must not be applied: it is done again, by other members."""

    @property
    def wrong_member(self) -> int | None:
        return self.suspects[0] if len(self.suspects) == 1 else None


class StepChecks:
    def __init__(self, *, sets: int, member: int, device: torch.device, node: Node = ALONE) -> None:
        """`sets` of shards make a step; `member` is this one, and `node` its ranks."""
        self.slots = min(sets, MOST_SETS)
        self._member = member
        self._node = node
        self._kind = identify_kind(device)
        self._kinds = {member: self._kind}
        self._step = _NO_STEP
        self._own: dict[int, int] = {}
        """Digests of this member in all tries of the step, the newest of each set."""
        self._current: dict[int, int] = {}
        """Digests of this member in this try."""
        self._known = Computations()
        self.tries = 0
        """Number of tries of the step that all members of this epoch have done."""

    def begin_try(self, step: int) -> None:
        self._current = {}
        if step != self._step:
            self._step = step
            self._own = {}
            self._known = Computations()
            self.tries = 0

    def note(self, number: int, digest: int) -> None:
        """Notes the digest of a backward pass for this set of shards."""
        if number < self.slots:
            # A user may call `backward` more than once for a shard.
            self._current[number] = fold(self._current.get(number, 0) + digest)
            self._own[number] = self._current[number]

    def sign(self) -> list[int]:
        """Returns for each set a number that holds this try's digest and this member; 0 for the
        sets of other members. A collective of the node.
        """
        numbers: list[int] = []
        for digest in self._combine(self._current):
            number = 0
            if digest:
                number = digest << _MEMBER_BITS
                number += self._member + 1
            numbers.append(number)
        return numbers

    def exchange(self, step: int, epoch: Epoch, group: dist.ProcessGroup | None) -> None:
        """Tells all members of a new epoch what each computed for the step that comes next.

        A collective.
        """
        self.learn(step, epoch, _gather(self.describe(), group))

    def describe(self) -> list[int]:
        """Returns what this member computed of its newest step. A collective of the node."""
        return [self._step, self._kind, *self._combine(self._own)]

    def learn(self, step: int, epoch: Epoch, descriptions: list[list[int]]) -> None:
        """Takes the descriptions of all members, in their order."""
        self.tries = 0
        self._known = Computations()
        for member, description in zip(epoch.members, descriptions, strict=True):
            computed_step, kind, *digests = description
            self._kinds[member.index] = kind
            if computed_step != step:
                continue
            for number, digest in enumerate(digests):
                if digest:
                    self._add(number, member.index, digest)

    def compare(self, numbers: list[int], size: int) -> Verdict:
        """Compares a try that all `size` members have done, by its numbers from `sign`, with those
        before.
        """
        self.tries += 1
        for number, signed in enumerate(numbers):
            if not signed:
                continue
            digest = signed >> _MEMBER_BITS
            member = signed - (digest << _MEMBER_BITS) - 1
            self._add(number, member, digest)
        disputed = self._known.find_disputed()
        if not disputed:
            return Verdict()
        suspects = self._known.find_suspects()
        repeats = bool(suspects)
        # After that many tries every member has computed every set, so another try tells no more.
        if len(suspects) > 1 and self.tries > size:
            repeats = False
        return Verdict(
            disputed=len(disputed),
            suspects=tuple(suspects),
            repeats=repeats,
        )

    def _combine(self, digests: dict[int, int]) -> list[int]:
        """Returns the digests of all sets; 0 for those that a rank of the node did not compute."""
        numbers = [digests.get(number, 0) for number in range(self.slots)]
        if self._node.size == 1:
            return numbers
        # Each rank has the digest of its own part of the gradients.
        totals = torch.tensor(numbers, dtype=torch.int64)
        counts = (totals != 0).long()
        self._node.add([totals, counts])
        combined: list[int] = []
        for total, count in zip(totals.tolist(), counts.tolist(), strict=True):
            digest = 0
            if count == self._node.size:
                digest = fold(int(total))
            combined.append(digest)
        return combined

    def _add(self, number: int, member: int, digest: int) -> None:
        computation = Computation(
            member=member,
            kind=self._kinds.get(member, INCOMPARABLE),
            digest=digest,
        )
        self._known.add(number, computation)


def _gather(numbers: list[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    if group is None:
        return [numbers]
    # On the CPU, as `gather_steps`.
    tensor = torch.tensor(numbers, dtype=torch.int64)
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(gathered, tensor, group=group)
    return [[int(number) for number in row] for row in gathered]
