"""A model on a faulty machine: it flips one bit of what it computes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from holdfast.training.trainer.model import ByteGPT


@dataclass(kw_only=True, slots=True)
class Fault:
    """A bit that a place flips at this step, in its first shard of a try."""

    step: int
    bit: int
    position: int = 0
    """Index of the number whose bit is flipped."""
    tries: int = 1
    """Number of tries with the fault; a transient fault has one."""
    lasts: bool = False
    """True if later steps have the fault too."""

    def is_due(self, step: int) -> bool:
        is_its_step = step >= self.step if self.lasts else step == self.step
        return is_its_step and self.tries > 0

    def strike(self, output: torch.Tensor) -> None:
        """Flips the bit in memory, so that autograd knows nothing of it."""
        bits = output.data.view(torch.int32).view(-1)
        place = self.position % len(bits)
        mask = torch.tensor(1 << self.bit, dtype=torch.int64).to(torch.int32)
        bits[place] ^= mask


class FaultyGPT(ByteGPT):
    """The reference model. `arm` says which faults strike in the next forward pass."""

    armed: ClassVar[list[Fault]] = []

    @classmethod
    def arm(cls, faults: Iterable[Fault], step: int) -> None:
        """Called at each try of a step."""
        cls.armed = []
        for fault in faults:
            if fault.is_due(step):
                fault.tries -= 1
                cls.armed.append(fault)

    def forward(self, *inputs: Any) -> torch.Tensor:
        output = super().forward(*inputs)
        for fault in type(self).armed:
            fault.strike(output)
        type(self).armed = []
        return output
