"""Numbers as two integers, whose sums do not depend on the order.

A number is divided into a multiple of 2^-15 and the rest, a multiple of 2^-61. Sums of up to 2^16
such integers fit an int64.
"""

import torch
from torch import Tensor

COARSE = 2.0**15
FINE = 2.0**61
LARGEST = 2.0**30
"""Numbers of this size and more, and those that are not finite, have no integers."""


def split(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the two integers of each number, and the mask of the numbers that have none."""
    values = numbers.double()
    is_fault = ~(values.abs() < LARGEST)
    values = values.masked_fill(is_fault, 0.0)
    coarse = (values * COARSE).trunc_()
    fine = values.sub_(coarse / COARSE).mul_(FINE).round_()
    return coarse.long(), fine.long(), is_fault


def join(coarse: Tensor, fine: Tensor) -> Tensor:
    """Returns the numbers of such integers, or of their sums, in float64."""
    total = coarse.double().div_(COARSE)
    total += fine.double().div_(FINE)
    return total


def make_zeros(count: int, device: torch.device) -> Tensor:
    """Returns the integers of `count` zeros, one row for each part and one for faults."""
    return torch.zeros(3, count, dtype=torch.int64, device=device)
