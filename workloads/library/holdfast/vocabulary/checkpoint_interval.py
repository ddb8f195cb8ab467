"""The time between two checkpoints that costs least (Young 1974, Daly 2006). Any unit of time, the
same throughout. Pure.
"""

import math


def daly(cost: float, mean_life: float) -> float:
    """Young's sqrt(2 * cost * mean_life), at which checkpoints cost what failures undo, to higher
    order.
    """
    # Daly's own bound: beyond it his series turns negative.
    if cost >= 2 * mean_life:
        return mean_life
    ratio = cost / (2 * mean_life)
    return math.sqrt(2 * cost * mean_life) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost
