"""Compares what members computed for the same shards of a step, and finds the one that was wrong.

A step that is done again is done by other members. On sound machines of one kind the gradients of a
shard are the same bits on each of them, so each shard's are reduced to a digest and compared.
A member is named if it alone explains all differences: without its digests there are none. Two
members whose digests differ explain them equally well, and the step is done once more by others.
"""

# Why it is so: infra/decisions/0204.

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

DIGEST_BITS = 45
NOT_FINITE = 1
"""Digest of gradients that are not finite: their bits say nothing."""
INCOMPARABLE = 0
"""Kind of a machine whose results may differ from one time to the next."""
_MASK = (1 << DIGEST_BITS) - 1
_MULTIPLIER = -1640531527  # 2^32 divided by the golden ratio, odd, as a signed number
_SHIFT = 15
_PART = 1 << 15
_NARROW = {1: torch.int8, 2: torch.int16}


def digest_values(values: Tensor) -> int:
    """Returns a digest of the bits of these numbers; never 0. Their order does not count."""
    return fold(int(hash_bits(values)))


def hash_bits(values: Tensor) -> Tensor:
    """Returns a number that depends on the bits of these numbers, not on their order.

    Zeros that pad them do not count, because the padding of a sharded model depends on the number
    of its ranks. Does not wait for the device.
    """
    flat = values.detach().reshape(-1)
    narrow = _NARROW.get(values.element_size())
    # In 32 bits: each pass over the gradients costs memory bandwidth.
    bits = flat.view(narrow).int() if narrow else flat.view(torch.int32)
    # Parts that fit into a processor's cache; a GPU has the memory for all numbers at once.
    length = _PART if bits.device.type == "cpu" else max(1, bits.numel())
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for part in bits.split(length):
        mixed = part * _MULTIPLIER
        # Without this nonlinear step, numbers that change their signs could cancel out in the sum.
        mixed.bitwise_xor_(mixed >> _SHIFT)
        total += mixed.sum()
    return total


def fold(number: int) -> int:
    """Returns a digest of an integer; never 0."""
    mixed = (number ^ (number >> DIGEST_BITS)) & _MASK
    return mixed or _MASK


def identify_kind(device: torch.device) -> int:
    """Returns a number that is equal on machines which compute the same bits, or INCOMPARABLE.

    Kernels differ between models of GPUs, between the vector units of CPUs, and with the number of
    threads. On a GPU many kernels add up in any order unless deterministic ones are asked for.
    """
    is_cpu = device.type == "cpu"
    if not is_cpu and not torch.are_deterministic_algorithms_enabled():
        return INCOMPARABLE
    name = torch.get_device_module(device).get_device_name(device) if not is_cpu else ""
    facts = [
        torch.__version__,
        name,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
    ]
    text = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return int(text[:8], 16) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The digest of one shard, as a member computed it once."""

    member: int
    kind: int
    """Result of `identify_kind` on the member's machine."""
    digest: int


@dataclass(slots=True)
class Computations:
    """All computations of the shards of one step, in any try."""

    by_shard: dict[int, list[Computation]] = field(default_factory=dict)

    def add(self, shard: int, computation: Computation) -> None:
        """Adds what a member computed; machines whose results may vary are left out."""
        if computation.kind != INCOMPARABLE:
            self.by_shard.setdefault(shard, []).append(computation)

    def find_disputed(self, without: int | None = None) -> list[int]:
        """Returns the shards whose digests differ, without the digests of the member `without`."""
        disputed: list[int] = []
        for shard, computations in self.by_shard.items():
            if _differ(entry for entry in computations if entry.member != without):
                disputed.append(shard)
        return sorted(disputed)

    def find_suspects(self) -> list[int]:
        """Returns the members that each explain all differences on their own.

        One: it was wrong. Several: another member has to compute the shards again. None, although
        there are differences: several members were wrong, or the program is not deterministic.
        """
        members: set[int] = set()
        for shard in self.find_disputed():
            members |= {entry.member for entry in self.by_shard[shard]}
        return sorted(member for member in members if not self.find_disputed(member))


def _differ(computations: Iterable[Computation]) -> bool:
    """Returns whether two machines of one kind, or one of them twice, have different digests."""
    digests = {(entry.kind, entry.digest) for entry in computations}
    kinds = {kind for kind, _ in digests}
    return len(digests) > len(kinds)
