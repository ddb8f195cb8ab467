"""The time between two checkpoints that costs least (Young 1974, Daly 2006). Any unit of time, the same throughout. Pure."""

import math


def young(cost: float, mean_life: float) -> float:
    """To first order: what checkpoints cost equals what failures undo."""
    return math.sqrt(2 * cost * mean_life)


def daly(cost: float, mean_life: float) -> float:
    """To higher order; differs from Young where failures are frequent."""
    # Daly's own bound: beyond it his series turns negative.
    if cost >= 2 * mean_life:
        return mean_life
    ratio = cost / (2 * mean_life)
    return young(cost, mean_life) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost
