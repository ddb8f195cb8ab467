"""Computes in closed form how long a job takes on failing capacity, and when that stops paying.

Hours throughout. Poisson failures at `churn` per running hour; they may hit the restart too. Real
lives are not exponential: `holdfast place` simulates them.
"""

import math
from collections.abc import Callable

from holdfast.vocabulary.checkpoint_interval import find_best_interval

MAX_CHURN = 1e4
# exp() of more overflows; at e^700 hours the answer is "never" anyway.
_MAX_EXPONENT = 700.0


def expected_hours(
    work_h: float,
    *,
    churn: float,
    interval_h: float,
    checkpoint_h: float,
    restart_h: float,
) -> float:
    """Returns the mean machine hours for the work with a checkpoint after every `interval_h`."""
    if churn == 0.0:
        return work_h * (1.0 + checkpoint_h / interval_h)
    intervals = work_h / interval_h
    failures_per_try = min(churn * (interval_h + checkpoint_h), _MAX_EXPONENT)
    failures_per_restart = min(churn * restart_h, _MAX_EXPONENT)
    # Mean hours until one interval passes without a failure.
    hours_per_interval = math.expm1(failures_per_try) / churn
    return math.exp(failures_per_restart) * hours_per_interval * intervals


def slowdown(*, churn: float, checkpoint_h: float, restart_h: float) -> float:
    """Returns the machine hours for an hour of work at the best interval."""
    if churn == 0.0:
        return 1.0
    interval_h = find_best_interval(checkpoint_h, 1 / churn)
    return expected_hours(
        1.0,
        churn=churn,
        interval_h=interval_h,
        checkpoint_h=checkpoint_h,
        restart_h=restart_h,
    )


def batch_slowdown(*, churn: float, restart_h: float, item_batch_h: float) -> float:
    """Returns the machine hours for an hour of work from a queue.

    A failure costs half a micro-batch and a restart; intervals do not matter.
    """
    return 1.0 + churn * (restart_h + item_batch_h / 2.0)


def break_even(price_ratio: float, slow: Callable[[float], float]) -> float:
    """Returns the churn at which the cheaper capacity costs as much as the other one.

    The answer is inf if it never does, 0 if it always costs more. `price_ratio` is cheap over
    expensive; `slow(churn)` returns the machine hours for an hour of work on the cheap one.
    """
    if price_ratio >= 1.0:
        return 0.0
    bound = 1.0 / price_ratio
    if slow(MAX_CHURN) < bound:
        return math.inf
    low = 0.0
    high = MAX_CHURN
    # Bisection, not Newton: with a free restart the curve is flat, and its slope is no guide.
    for _ in range(200):
        middle = (low + high) / 2.0
        if slow(middle) < bound:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def break_even_churn(price_ratio: float, *, checkpoint_h: float, restart_h: float) -> float:
    return break_even(
        price_ratio,
        lambda churn: slowdown(churn=churn, checkpoint_h=checkpoint_h, restart_h=restart_h),
    )
