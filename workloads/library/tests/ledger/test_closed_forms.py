import math

import pytest

from holdfast.contract.checkpoint_interval import daly
from holdfast.ledger import closed_forms as forms

MINUTE_H, SECOND_H = 1 / 60, 1 / 3600


# Price of Spot over that of the alternative; churn at which they cost the same, by checkpoint s / restart min.
BREAK_EVEN = {
    "L4 against on-demand": (0.399, [14.3, 6.8, 3.4, 1.50]),
    "A100 against on-demand": (0.491, [10.7, 4.9, 2.5, 1.05]),
    "A100 at 1.804 against flex-start at 2.020": (0.893, [1.13, 0.385, 0.193, 0.057]),
    "A100 at 1.928 against flex-start at 2.020": (0.954, [0.33, 0.092, 0.046, 0.0115]),
    "H100 against on-demand": (0.305, []),
}
COSTS = [(5, 3), (30, 5), (60, 10), (300, 15)]


@pytest.mark.parametrize(
    ("ratio", "cost", "churn"),
    [(ratio, cost, churn) for ratio, row in BREAK_EVEN.values() for cost, churn in zip(COSTS, row, strict=False)],
)
def test_break_even_churn_with_checkpoints(ratio: float, cost: tuple[float, float], churn: float) -> None:
    got = forms.break_even_churn(ratio, checkpoint_h=cost[0] * SECOND_H, restart_h=cost[1] * MINUTE_H)
    assert got == pytest.approx(churn, rel=0.015)


@pytest.mark.parametrize(
    ("churn", "slow", "minutes"),
    [
        (0.02, 1.020, 55), (0.05, 1.034, 34), (0.15, 1.065, 20), (0.3, 1.10, 14), (0.5, 1.14, 11), (1.0, 1.24, 7.4),
    ],
)  # fmt: skip
def test_slowdown_and_interval_at_common_churn(churn: float, slow: float, minutes: float) -> None:
    assert forms.slowdown(churn=churn, checkpoint_h=30 * SECOND_H, restart_h=5 * MINUTE_H) == pytest.approx(
        slow, abs=0.005
    )
    assert daly(30 * SECOND_H, 1 / churn) / MINUTE_H == pytest.approx(minutes, abs=0.6)


def test_the_optimum_interval_costs_less_than_half_and_twice_of_it() -> None:
    best = daly(0.01, 1 / 0.3)
    costs = [
        forms.expected_hours(1.0, churn=0.3, interval_h=best * f, checkpoint_h=0.01, restart_h=0.1)
        for f in (0.5, 1.0, 2.0)
    ]
    assert costs[1] == min(costs)


def test_no_churn_costs_only_the_checkpoints() -> None:
    assert forms.expected_hours(10.0, churn=0.0, interval_h=1.0, checkpoint_h=0.1, restart_h=9.0) == pytest.approx(11.0)
    assert forms.slowdown(churn=0.0, checkpoint_h=0.1, restart_h=9.0) == 1.0


def test_a_dearer_spot_never_pays_and_a_free_restart_always_does() -> None:
    assert forms.break_even_churn(1.0, checkpoint_h=0.01, restart_h=0.1) == 0.0
    assert math.isinf(forms.break_even(0.5, lambda churn: 1.0))


def test_batch_loses_half_a_micro_batch_and_a_restart() -> None:
    assert forms.batch_slowdown(churn=0.5, restart_h=0.1, item_batch_h=0.02) == pytest.approx(1.055)
