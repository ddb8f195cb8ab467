"""Four in five intervals hold in three simulated months."""

import pytest

from workloads.library.tests.month.forecast_coverage import measure_coverage


@pytest.mark.process
def test_intervals_hold_four_times_in_five_in_the_month() -> None:
    coverage = measure_coverage(seed=7, days=30, months=3)
    assert coverage.interval_count >= 300
    assert coverage.is_calibrated, coverage.describe()
