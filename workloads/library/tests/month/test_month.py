"""A day of ordinary Spot operation wakes nobody; trouble of every kind in between is found within
its promise.
"""

import pytest

from workloads.library.tests.month.month import Month, judge
from workloads.library.tests.month.month_trouble import KINDS, add_trouble

DAYS = 1


@pytest.mark.process
def test_an_ordinary_day_wakes_nobody_and_all_trouble_is_found_in_time() -> None:
    month = Month(seed=7, days=DAYS)
    month.add_ordinary_jobs()
    add_trouble(month)
    judged = judge(month.incidents, month.play())
    assert not judged.missed
    assert len(judged.found) == KINDS
    assert not judged.false_pages
    # One eviction in its first hours is no reason to look at a job.
    assert not [
        firing for firing in judged.other if firing.alert == "HoldfastGoodputBelowBreakEven"
    ]
    assert month.happened["evictions"] >= 3
