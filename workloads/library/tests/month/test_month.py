"""A day of ordinary Spot operation does not page; every kind of trouble alerts in time."""

import pytest

from workloads.library.tests.month.month import Month, judge
from workloads.library.tests.month.month_trouble import KINDS, add_trouble

DAYS = 1


@pytest.mark.process
def test_only_trouble_pages_and_each_kind_alerts_in_time() -> None:
    month = Month(seed=7, days=DAYS)
    month.add_ordinary_jobs()
    add_trouble(month)
    judged = judge(month.incidents, month.play())
    assert not judged.missed
    assert len(judged.alert_minutes) == KINDS
    assert not judged.false_pages
    # One eviction in its first hours is no reason to look at a job.
    assert "HoldfastGoodputBelowBreakEven" not in {firing.alert for firing in judged.other}
    assert month.happened["evictions"] >= 3
