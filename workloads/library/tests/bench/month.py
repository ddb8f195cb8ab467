"""False pages in a month of ordinary Spot operation, and the time until real trouble pages.

    python -m workloads.library.tests.bench.month

At least 200 seeded jobs see evictions with and without notice, droughts, cancellations, failed
saves and completions. The jobs of three months are also asked when they will be done and for how
much, as `explain` is; intervals of 80 % should hold for 75 to 85 %. So should they for jobs on the
zones of the public record.
"""

from collections import Counter

from workloads.library.tests.bench.result import finish, options
from workloads.library.tests.month import forecast_coverage
from workloads.library.tests.month.month import Month, judge
from workloads.library.tests.month.month_trouble import KINDS, add_trouble
from workloads.library.tests.place import recorded_zones

JOBS = 200
MONTHS = 3
ZONE_JOBS = 400


def main() -> None:
    arguments = options(__doc__, days=30, seed=7)
    month = Month(seed=arguments.seed, days=arguments.days)
    month.add_ordinary_jobs()
    jobs = len(month.jobs)
    add_trouble(month)
    judged = judge(month.incidents, month.play())
    month_intervals = forecast_coverage.measure_coverage(
        seed=arguments.seed,
        days=arguments.days,
        months=MONTHS,
    )
    zone_intervals = recorded_zones.measure_coverage(seed=1, jobs=ZONE_JOBS)
    minutes = {}
    for kind, (took, promise) in judged.alert_minutes.items():
        minutes[kind] = f"{took} of {promise}"
    figures = {
        "jobs": jobs,
        "happened": month.happened,
        "minutes until its alert": minutes,
        "missed": judged.missed,
        "false pages": [str(firing) for firing in judged.false_pages],
        "tickets": Counter(firing.alert for firing in judged.other),
        "intervals of jobs of the month": month_intervals.describe(),
        "intervals on recorded zones": zone_intervals.describe(),
    }
    goals = {
        "no_false_page": not judged.false_pages,
        "all_trouble_found_in_time": not judged.missed and len(judged.alert_minutes) >= KINDS,
        f"{JOBS}_jobs": jobs >= JOBS,
        "month_intervals_hold": month_intervals.is_calibrated,
        "zone_intervals_hold": zone_intervals.is_calibrated,
    }
    finish(figures, goals)


if __name__ == "__main__":
    main()
