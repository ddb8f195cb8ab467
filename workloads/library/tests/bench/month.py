"""`python -m workloads.library.tests.bench.month`: false pages in a month of ordinary Spot
operation, and time to page of real trouble.

At least 200 seeded jobs: evictions with and without notice, droughts, cancellations, failed saves,
completions.
"""

from collections import Counter

from workloads.library.tests.bench.result import ended, options
from workloads.library.tests.month.month import Month, judge
from workloads.library.tests.month.month_trouble import KINDS, add_trouble

JOBS = 200


def main() -> None:
    given = options(__doc__, days=30, seed=7)
    month = Month(seed=given.seed, days=given.days)
    month.add_ordinary_jobs()
    jobs = len(month.jobs)
    add_trouble(month)
    judged = judge(month.incidents, month.play())
    found = {
        "jobs": jobs,
        "happened": month.happened,
        "minutes until its alert": {
            kind: f"{took} of {promise}" for kind, (took, promise) in judged.found.items()
        },
        "missed": judged.missed,
        "false pages": [str(firing) for firing in judged.false_pages],
        "tickets": Counter(firing.alert for firing in judged.other),
    }
    goals = {
        "no_false_page": not judged.false_pages,
        "all_trouble_found_in_time": not judged.missed and len(judged.found) >= KINDS,
        f"{JOBS}_jobs": jobs >= JOBS,
    }
    ended(found, goals)


if __name__ == "__main__":
    main()
