"""Elastic gangs in one process, of which a member's arithmetic flips a bit.

Forward and backward passes are real, and so are the digests, their comparison and the exact sum.
Only the members are simulated: they are replicas, so one model computes for all of them.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from holdfast.training.elastic.gradients import ExactGradientSum
from holdfast.training.elastic.shards import share
from holdfast.training.elastic.step_checks import StepChecks, Verdict
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.recomputation import digest_values
from holdfast.training.trainer.data import mix_seed, seed_draws
from holdfast.training.trainer.model import ByteGPT, ModelConfig, next_byte_loss

MODEL = ModelConfig(
    context=8,
    width=16,
    layers=1,
    heads=2,
)
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
    """True if a gradient had other bits because of the flip."""
    disputes: int
    """Tries in which digests differed."""
    survivors: int
    """Members that remained after the loss."""
    tries: int
    """Tries of the step, of which two are due to the loss itself."""
    is_right: bool
    """True if the gradient that is applied has the bits of an undisturbed step."""


def flip_bit(values: Tensor, flip: Flip) -> None:
    words = values.data.view(torch.int32)
    bits = words.view(-1)
    wide_mask = torch.tensor(
        1 << flip.bit,
        dtype=torch.int64,
    )
    mask = wide_mask.to(torch.int32)
    place = flip.position % len(bits)
    bits[place] ^= mask


class Gang:
    """`size` members train a small model; `play` loses one of them in each step."""

    def __init__(self, *, size: int, shards: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._model = ByteGPT(MODEL)
        self._layers: list[nn.Module] = []
        for module in self._model.modules():
            children = list(module.children())
            if not children:
                self._layers.append(module)
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-3)
        self._shards = shards
        self._seed = seed
        self._step = 0
        members = list(range(size))
        self._epoch = self._make_epoch(1, members)
        self._checks: dict[int, StepChecks] = {}
        for member in members:
            checks = StepChecks(
                sets=shards,
                member=member,
                device=CPU,
            )
            self._checks[member] = checks
        self._sum = ExactGradientSum(
            self._parameters,
            flags=shards,
        )
        self._enter(self._epoch)

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    def _make_epoch(self, number: int, members: list[int]) -> Epoch:
        entries: list[Member] = []
        for member in members:
            entry = Member(
                index=member,
                incarnation=str(member),
            )
            entries.append(entry)
        return Epoch(
            number=number,
            members=tuple(entries),
        )

    def _enter_with(self, members: list[int]) -> None:
        """Begins the next epoch, which has these members."""
        number = self._epoch.number + 1
        epoch = self._make_epoch(number, members)
        self._enter(epoch)

    def _enter(self, epoch: Epoch) -> None:
        """Begins an epoch, in which members tell each other what they computed."""
        self._epoch = epoch
        descriptions: list[list[int]] = []
        for member in epoch.members:
            checks = self._checks[member.index]
            description = checks.describe()
            descriptions.append(description)
        for member in epoch.members:
            checks = self._checks[member.index]
            checks.learn(
                self._step,
                epoch,
                descriptions,
            )

    def _compute(self, shard: int, flip: Flip | None) -> int:
        """Adds a shard's gradients and returns their digest."""
        seed = mix_seed(
            self._seed,
            self._step,
            shard,
        )
        seed_draws(seed, CPU)
        length = MODEL.context + 1
        shape = (SAMPLES, length)
        tokens = torch.randint(0, 256, shape)
        handle = None
        if flip and not flip.is_backward:
            handle = self._hook(flip)
        inputs = tokens[:, :-1]
        targets = tokens[:, 1:]
        logits = self._model(inputs)
        loss = next_byte_loss(logits, targets)
        mean = loss / self._shards
        mean.backward()
        if handle:
            handle.remove()
        if flip and flip.is_backward:
            self._flip_gradient(flip)
        self._sum.add_shard()
        return self._sum.shard_digest

    def _hook(self, flip: Flip) -> RemovableHandle:
        """Lets the flip strike in the forward pass, until the handle is removed."""

        def strike(
            _module: nn.Module,
            _inputs: object,
            output: Tensor,
        ) -> None:
            flip_bit(output, flip)

        layer = self._layers[flip.layer]
        return layer.register_forward_hook(strike)

    def _flip_gradient(self, flip: Flip) -> None:
        count = len(self._parameters)
        place = flip.layer % count
        gradient = self._parameters[place].grad
        assert gradient is not None
        flip_bit(gradient, flip)

    def _try(self, number: int, flip: Flip | None) -> dict[int, int]:
        """Computes all shards of a step; returns the digest of each."""
        self._sum.begin()
        members = self._epoch.members
        digests: dict[int, int] = {}
        size = len(members)
        for rank, member in enumerate(members):
            checks = self._checks[member.index]
            checks.begin_try(self._step)
            turns = self._epoch.number + checks.tries
            place = (rank + turns) % size
            # A flip strikes in the first shard of its member.
            strike = self._find_strike(
                flip,
                member.index,
                number,
            )
            shards = share(
                self._shards,
                place,
                size,
            )
            for shard in shards:
                digest = self._compute(shard, strike)
                digests[shard] = digest
                checks.note(shard, digest)
                strike = None
        return digests

    def _find_strike(
        self,
        flip: Flip | None,
        member: int,
        number: int,
    ) -> Flip | None:
        """Returns the flip if it strikes this member in this try."""
        if flip is None:
            return None
        if flip.member != member:
            return None
        if number not in flip.tries:
            return None
        return flip

    def _exchange(self) -> tuple[bool, int | None, bool]:
        """Sums a try; returns whether it is repeated, who was wrong, and whether any differed."""
        numbers = [0] * self._shards
        members = self._epoch.members
        size = len(members)
        for member in members:
            checks = self._checks[member.index]
            signs = checks.sign()
            for slot, signed in enumerate(signs):
                numbers[slot] += signed
        result = self._sum.reduce(numbers)
        flags = self._sum.flags_of_try
        verdicts: list[Verdict] = []
        for member in members:
            checks = self._checks[member.index]
            verdict = checks.compare(flags, size)
            verdicts.append(verdict)
        distinct = set(verdicts)
        assert len(distinct) == 1, "members have different verdicts"
        verdict = verdicts[0]
        if verdict.repeats:
            self._sum.restart_step()
        is_repeated = verdict.repeats or result is None
        is_disputed = bool(verdict.disputed)
        return (
            is_repeated,
            verdict.wrong_member,
            is_disputed,
        )

    def hash_gradient(self) -> int:
        total = 0
        for parameter in self._parameters:
            gradient = parameter.grad
            assert gradient is not None
            digest = digest_values(gradient)
            total = 3 * total + digest
        return total

    def compute_reference(self) -> tuple[dict[int, int], int]:
        """Returns the digests of an undisturbed try, and of its gradient."""
        exponent = self._sum.exponent
        numbers = [0] * self._shards
        while True:
            digests = self._try(-1, None)
            result = self._sum.reduce(numbers)
            if result is not None:
                break
        self._sum.exponent = exponent
        gradient = self.hash_gradient()
        return digests, gradient

    def play(self, lost_member: int, flip: Flip | None) -> Outcome:
        """Plays a step in which a member is lost, and applies it."""
        reference, gradient = self.compute_reference()
        members: list[int] = []
        survivors: list[int] = []
        for member in self._epoch.members:
            members.append(member.index)
            if member.index != lost_member:
                survivors.append(member.index)
        digests = self._try(0, flip)
        is_effective = digests != reference
        # The sum failed: members know what they computed themselves.
        self._enter_with(survivors)
        named = None
        disputes = 0
        tries = 1
        while tries < MOST_TRIES:
            digests = self._try(tries, flip)
            if digests != reference:
                is_effective = True
            tries += 1
            is_repeated, wrong, is_disputed = self._exchange()
            disputes += is_disputed
            if wrong is not None:
                named = wrong
                sound: list[int] = []
                for member in survivors:
                    if member != wrong:
                        sound.append(member)
                self._enter_with(sound)
            if not is_repeated:
                break
        applied = self.hash_gradient()
        is_right = applied == gradient
        self._optimizer.step()
        self._step += 1
        # The lost one is replaced, and so is the one that was named.
        self._enter_with(members)
        return Outcome(
            named=named,
            is_effective=is_effective,
            disputes=disputes,
            survivors=len(survivors),
            tries=tries,
            is_right=is_right,
        )


def make_flip(
    rng: random.Random,
    gang: Gang,
    member: int,
    tries: tuple[int, ...],
) -> Flip:
    return Flip(
        member=member,
        tries=tries,
        layer=rng.randrange(gang.layer_count),
        is_backward=rng.random() < 0.5,
        position=rng.randrange(1 << 20),
        bit=rng.randrange(32),
    )
