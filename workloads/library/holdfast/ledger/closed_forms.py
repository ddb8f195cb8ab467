"""Closed forms: how long a job takes on capacity that fails, and the churn at which it stops
paying.

Hours throughout. Poisson failures at `churn` per running hour; they may hit the restart too. Real
lives are not exponential: `holdfast place` simulates them.
"""

import math
from collections.abc import Callable

from holdfast.vocabulary.checkpoint_interval import daly

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
    """Mean machine hours for the work when every `interval_h` of it is followed by a checkpoint."""
    if churn == 0.0:
        return work_h * (1.0 + checkpoint_h / interval_h)
    # Mean hours until one interval has passed without a failure, then for each interval.
    tries = math.expm1(min(churn * (interval_h + checkpoint_h), _MAX_EXPONENT)) / churn
    return math.exp(min(churn * restart_h, _MAX_EXPONENT)) * tries * (work_h / interval_h)


def slowdown(*, churn: float, checkpoint_h: float, restart_h: float) -> float:
    """Machine hours for an hour of work at the best interval."""
    if churn == 0.0:
        return 1.0
    interval_h = daly(checkpoint_h, 1 / churn)
    return expected_hours(
        1.0,
        churn=churn,
        interval_h=interval_h,
        checkpoint_h=checkpoint_h,
        restart_h=restart_h,
    )


def batch_slowdown(*, churn: float, restart_h: float, item_batch_h: float) -> float:
    """Work from a queue loses half a micro-batch and a restart; intervals do not matter."""
    return 1.0 + churn * (restart_h + item_batch_h / 2.0)


def break_even(price_ratio: float, slow: Callable[[float], float]) -> float:
    """The churn at which the cheaper capacity costs as much as the other one; inf if never, 0 if
    always.

    `price_ratio` is cheap over expensive; `slow(churn)` the machine hours for an hour of work on
    the cheap one.
    """
    if price_ratio >= 1.0:
        return 0.0
    bound = 1.0 / price_ratio
    if slow(MAX_CHURN) < bound:
        return math.inf
    low = 0.0
    high = MAX_CHURN
    # Not Newton: with a free restart the curve is flat, and its slope is no guide.
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if slow(middle) < bound else (low, middle)
    return (low + high) / 2.0


def break_even_churn(price_ratio: float, *, checkpoint_h: float, restart_h: float) -> float:
    return break_even(
        price_ratio,
        lambda c: slowdown(
            churn=c,
            checkpoint_h=checkpoint_h,
            restart_h=restart_h,
        ),
    )
