"""Of the intervals of three simulated months, four in five hold."""

import pytest

from workloads.library.tests.month.forecast_coverage import measure_coverage


@pytest.mark.process
def test_intervals_hold_four_times_in_five_in_the_month() -> None:
    coverage = measure_coverage(seed=7, days=30, months=3)
    times, dollars = coverage.shares()
    assert coverage.asked >= 300
    assert 0.75 <= times <= 0.85
    assert 0.75 <= dollars <= 0.85
