"""Closed forms: how long a job takes on capacity that fails, and the churn at which it stops paying.

Hours throughout.
Poisson failures at `churn` per running hour; they may hit the restart too. These explain an answer; the
distribution comes from the simulator, because real lifetimes are not exponential.
"""

import math
from collections.abc import Callable

MAX_CHURN = 1e4
# exp() of more overflows; at e^700 hours the answer is "never" anyway.
_MAX_EXPONENT = 700.0


def young(checkpoint_h: float, churn: float) -> float:
    """First-order best work between checkpoints (Young 1974)."""
    return math.sqrt(2.0 * checkpoint_h / churn)


def daly(checkpoint_h: float, churn: float) -> float:
    """Higher-order best work between checkpoints (Daly 2006); differs from Young where failures are frequent."""
    mean_life_h = 1.0 / churn
    # Beyond this the series turns negative: nothing better than one checkpoint a mean life.
    if checkpoint_h >= 2.0 * mean_life_h:
        return mean_life_h
    half = checkpoint_h / (2.0 * mean_life_h)
    return young(checkpoint_h, churn) * (1.0 + math.sqrt(half) / 3.0 + half / 9.0) - checkpoint_h


def expected_hours(work_h: float, *, churn: float, interval_h: float, checkpoint_h: float, restart_h: float) -> float:
    """Mean machine hours for the work when every `interval_h` of it is followed by a checkpoint."""
    if churn == 0.0:
        return work_h * (1.0 + checkpoint_h / interval_h)
    return (
        math.exp(min(churn * restart_h, _MAX_EXPONENT))
        * _tries(churn, interval_h + checkpoint_h)
        * (work_h / interval_h)
    )


def expected_hours_without_checkpoints(work_h: float, *, churn: float, restart_h: float) -> float:
    """Every failure starts the job over."""
    if churn == 0.0:
        return work_h
    return math.exp(min(churn * restart_h, _MAX_EXPONENT)) * _tries(churn, work_h)


def slowdown(*, churn: float, checkpoint_h: float, restart_h: float) -> float:
    """Machine hours for an hour of work at the best interval."""
    if churn == 0.0:
        return 1.0
    interval_h = daly(checkpoint_h, churn)
    return expected_hours(1.0, churn=churn, interval_h=interval_h, checkpoint_h=checkpoint_h, restart_h=restart_h)


def batch_slowdown(*, churn: float, restart_h: float, item_batch_h: float) -> float:
    """Work from a queue loses half a micro-batch and a restart; intervals do not matter."""
    return 1.0 + churn * (restart_h + item_batch_h / 2.0)


def gang_churn(*, nodes: int, node_churn: float, together: float = 1.0) -> float:
    """Events that stop a gang of `nodes`, an hour. `together`: mean nodes lost in one event (1: independent).

    Spot reclaims of one zone come in clumps; counting nodes instead of events overstates the rate.
    """
    return nodes * node_churn / max(1.0, min(together, float(nodes)))


def rigid_goodput(*, events: float, wait_h: float, restart_h: float) -> float:
    """Useful share of the time of a gang that stops whole at each of `events` a running hour."""
    return max(0.0, 1.0 - events * restart_h) / (1.0 + events * wait_h)


def elastic_goodput(
    *, nodes: int, node_churn: float, wait_h: float, restart_h: float, shrink_h: float, grow_h: float,
    together: float = 1.0,
) -> float:  # fmt: skip
    """Useful share of all nodes' time of a gang that goes on without the lost ones, its work evenly divided.

    Missing are lost nodes until replacements came, and their restart; the others stand still at each shrink and grow.
    """
    groups = nodes / max(1.0, min(together, float(nodes)))
    there = running_share(node_churn, wait_h)
    losses = groups * node_churn * there
    return max(0.0, there - losses * (restart_h / groups + there * (shrink_h + grow_h)))


def running_share(node_churn: float, wait_h: float) -> float:
    """Of a machine that is lost `node_churn` times a running hour and then away for `wait_h`."""
    return 1.0 / (1.0 + node_churn * wait_h)


def planned_hours(work_h: float, *, max_run_h: float, checkpoint_h: float, restart_h: float) -> float:
    """On nodes with a known end: a checkpoint and a restart for each end, no lost work."""
    useful_h = max_run_h - restart_h - checkpoint_h
    if useful_h <= 0.0:
        return math.inf
    # The first node needs a start too, the last one no checkpoint.
    machines = math.ceil(work_h / useful_h)
    return work_h + machines * restart_h + (machines - 1) * checkpoint_h


def break_even(price_ratio: float, slow: Callable[[float], float]) -> float:
    """The churn at which the cheaper capacity costs as much as the dearer one; inf if never, 0 if always.

    `price_ratio` is cheap over dear; `slow(churn)` the machine hours for an hour of work on the cheap one.
    """
    if price_ratio >= 1.0:
        return 0.0
    bound = 1.0 / price_ratio
    if slow(MAX_CHURN) < bound:
        return math.inf
    low, high = 0.0, MAX_CHURN
    # Not Newton: with a free restart the curve is flat, and its slope is no guide.
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if slow(middle) < bound else (low, middle)
    return (low + high) / 2.0


def break_even_churn(price_ratio: float, *, checkpoint_h: float, restart_h: float) -> float:
    return break_even(price_ratio, lambda c: slowdown(churn=c, checkpoint_h=checkpoint_h, restart_h=restart_h))


def _tries(churn: float, span_h: float) -> float:
    """Mean hours until `span_h` has passed without a failure."""
    return math.expm1(min(churn * span_h, _MAX_EXPONENT)) / churn
