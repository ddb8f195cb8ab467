"""False pages in a month of ordinary Spot operation, and the time until real trouble pages.

    python -m workloads.library.tests.bench.month

At least 200 seeded jobs see evictions with and without notice, droughts, cancellations, failed
saves and completions.
"""

from collections import Counter

from workloads.library.tests.bench.result import finish, options
from workloads.library.tests.month.month import Month, judge
from workloads.library.tests.month.month_trouble import KINDS, add_trouble

JOBS = 200


def main() -> None:
    arguments = options(__doc__, days=30, seed=7)
    month = Month(seed=arguments.seed, days=arguments.days)
    month.add_ordinary_jobs()
    jobs = len(month.jobs)
    add_trouble(month)
    judged = judge(month.incidents, month.play())
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
    }
    goals = {
        "no_false_page": not judged.false_pages,
        "all_trouble_found_in_time": not judged.missed and len(judged.alert_minutes) >= KINDS,
        f"{JOBS}_jobs": jobs >= JOBS,
    }
    finish(figures, goals)


if __name__ == "__main__":
    main()
