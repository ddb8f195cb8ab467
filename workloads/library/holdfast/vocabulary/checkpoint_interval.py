"""Computes the time between two checkpoints that costs least (Young 1974, Daly 2006).

Any unit of time works, the same throughout. Pure.
"""

import math


def find_best_interval(cost: float, mean_life: float) -> float:
    """Returns Daly's higher-order form of Young's sqrt(2 * cost * mean_life).

    At that interval checkpoints cost as much as the work that failures undo.
    """
    # Daly's series turns negative beyond this bound, which he gives himself.
    if cost >= 2 * mean_life:
        return mean_life
    ratio = cost / (2 * mean_life)
    young = math.sqrt(2 * cost * mean_life)
    correction = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return young * correction - cost
