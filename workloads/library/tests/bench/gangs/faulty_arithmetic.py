"""Elastic gangs in one process, of which a member's arithmetic flips a bit.

Forward and backward passes are real, and so are the digests, their comparison and the exact sum.
Only the members are simulated: they are replicas, so one model computes for all of them.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.training.elastic.gradients import ExactGradientSum
from holdfast.training.elastic.shards import share
from holdfast.training.elastic.step_checks import StepChecks
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.recomputation import digest_values
from holdfast.training.trainer.data import mix_seed, seed_draws
from holdfast.training.trainer.model import ByteGPT, ModelConfig, next_byte_loss

MODEL = ModelConfig(context=8, width=16, layers=1, heads=2)
SAMPLES = 2
MOST_TRIES = 20
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """One flipped bit: of what a layer computes, or of a parameter's gradient."""

    member: int
    tries: tuple[int, ...]
    """Tries of the step in which it strikes, counted from 0."""
    layer: int
    is_backward: bool
    position: int
    bit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of one step that was done again."""

    named: int | None
    is_effective: bool
    """True if a gradient had other bits for the flip."""
    disputes: int
    """Tries in which digests differed."""
    survivors: int
    """Members that remained after the loss."""
    tries: int
    """Tries of the step, of which two are due to the loss itself."""
    is_right: bool
    """True if the gradient that is applied has the bits of an undisturbed step."""


def flip_bit(values: Tensor, flip: Flip) -> None:
    bits = values.data.view(torch.int32).view(-1)
    mask = torch.tensor(1 << flip.bit, dtype=torch.int64).to(torch.int32)
    bits[flip.position % len(bits)] ^= mask


class Gang:
    """`size` members train a small model; `lose` lets one fail in each step."""

    def __init__(self, *, size: int, shards: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._model = ByteGPT(MODEL)
        self._layers: list[nn.Module] = []
        for module in self._model.modules():
            if not list(module.children()):
                self._layers.append(module)
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-3)
        self._shards = shards
        self._seed = seed
        self._step = 0
        self._epoch = self._make_epoch(1, list(range(size)))
        self._checks: dict[int, StepChecks] = {}
        for member in range(size):
            checks = StepChecks(sets=shards, member=member, device=CPU)
            self._checks[member] = checks
        self._sum = ExactGradientSum(self._parameters, flags=shards)
        self._enter(self._epoch)

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    def _make_epoch(self, number: int, members: list[int]) -> Epoch:
        named = tuple(Member(index=member, incarnation=str(member)) for member in members)
        return Epoch(number=number, members=named)

    def _enter(self, epoch: Epoch) -> None:
        """Begins an epoch, in which members tell each other what they computed."""
        self._epoch = epoch
        descriptions = [self._checks[member.index].describe() for member in epoch.members]
        for member in epoch.members:
            self._checks[member.index].learn(self._step, epoch, descriptions)

    def _compute(self, shard: int, flip: Flip | None) -> int:
        """Adds a shard's gradients and returns their digest."""
        seed_draws(mix_seed(self._seed, self._step, shard), CPU)
        tokens = torch.randint(0, 256, (SAMPLES, MODEL.context + 1))
        handle = None
        if flip and not flip.is_backward:
            layer = self._layers[flip.layer]
            handle = layer.register_forward_hook(lambda _, __, output: flip_bit(output, flip))
        loss = next_byte_loss(self._model(tokens[:, :-1]), tokens[:, 1:])
        (loss / self._shards).backward()
        if handle:
            handle.remove()
        if flip and flip.is_backward:
            gradient = self._parameters[flip.layer % len(self._parameters)].grad
            assert gradient is not None
            flip_bit(gradient, flip)
        self._sum.add_shard()
        return self._sum.shard_digest

    def _try(self, number: int, flip: Flip | None) -> dict[int, int]:
        """Computes all shards of a step; returns the digest of each."""
        self._sum.begin()
        members = self._epoch.members
        digests: dict[int, int] = {}
        for rank, member in enumerate(members):
            checks = self._checks[member.index]
            checks.begin_try(self._step)
            turned = (rank + self._epoch.number + checks.tries) % len(members)
            strikes = flip is not None and flip.member == member.index and number in flip.tries
            for position, shard in enumerate(share(self._shards, turned, len(members))):
                digests[shard] = self._compute(shard, flip if strikes and not position else None)
                checks.note(shard, digests[shard])
        return digests

    def _exchange(self) -> tuple[bool, int | None, bool]:
        """Sums a try; returns whether it is repeated, who was wrong, and whether any differed."""
        numbers = [0] * self._shards
        for member in self._epoch.members:
            for slot, signed in enumerate(self._checks[member.index].sign()):
                numbers[slot] += signed
        done = self._sum.reduce(numbers)
        verdicts = [
            self._checks[member.index].compare(self._sum.flags_of_try, len(self._epoch.members))
            for member in self._epoch.members
        ]
        assert len(set(verdicts)) == 1, "members have different verdicts"
        verdict = verdicts[0]
        if verdict.repeats:
            self._sum.restart_step()
        is_repeated = verdict.repeats or done is None
        return is_repeated, verdict.wrong_member, bool(verdict.disputed)

    def hash_gradient(self) -> int:
        total = 0
        for parameter in self._parameters:
            assert parameter.grad is not None
            total = 3 * total + digest_values(parameter.grad)
        return total

    def compute_reference(self) -> tuple[dict[int, int], int]:
        """Returns the digests of an undisturbed try, and of its gradient."""
        exponent = self._sum.exponent
        while True:
            digests = self._try(-1, None)
            if self._sum.reduce([0] * self._shards) is not None:
                break
        self._sum.exponent = exponent
        return digests, self.hash_gradient()

    def play(self, lost_member: int, flip: Flip | None) -> Outcome:
        """Plays a step in which a member is lost, and applies it."""
        reference, gradient = self.compute_reference()
        members = [member.index for member in self._epoch.members]
        digests = self._try(0, flip)
        is_effective = digests != reference
        # The sum failed: members know what they computed themselves.
        survivors = [member for member in members if member != lost_member]
        self._enter(self._make_epoch(self._epoch.number + 1, survivors))
        named = None
        disputes = 0
        tries = 1
        while tries < MOST_TRIES:
            digests = self._try(tries, flip)
            is_effective = is_effective or digests != reference
            tries += 1
            is_repeated, wrong, is_disputed = self._exchange()
            disputes += is_disputed
            if wrong is not None:
                named = wrong
                rest = [member for member in survivors if member != wrong]
                self._enter(self._make_epoch(self._epoch.number + 1, rest))
            if not is_repeated:
                break
        is_right = self.hash_gradient() == gradient
        self._optimizer.step()
        self._step += 1
        # The lost one is replaced, and so is the one that was named.
        self._enter(self._make_epoch(self._epoch.number + 1, members))
        return Outcome(
            named=named,
            is_effective=is_effective,
            disputes=disputes,
            survivors=len(survivors),
            tries=tries,
            is_right=is_right,
        )


def make_flip(rng: random.Random, gang: Gang, member: int, tries: tuple[int, ...]) -> Flip:
    return Flip(
        member=member,
        tries=tries,
        layer=rng.randrange(gang.layer_count),
        is_backward=rng.random() < 0.5,
        position=rng.randrange(1 << 20),
        bit=rng.randrange(32),
    )
