"""`python -m workloads.library.tests.bench.month`: false pages in a month of ordinary Spot operation, and time to page of real trouble.

At least 200 seeded jobs: evictions with and without notice, droughts, cancellations, failed saves, completions. Prints
each kind of trouble with the minutes until its alert beside the promise, and last a JSON line with its goals.
"""

import argparse
import json
import os
from collections import Counter

from workloads.library.tests.month.month import Month, judge
from workloads.library.tests.month.month_trouble import KINDS, add_trouble

JOBS = 200


def main() -> None:
    parser = argparse.ArgumentParser(prog="workloads.library.tests.bench.month", description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    month = Month(seed=given.seed, days=given.days)
    month.add_ordinary_jobs()
    jobs = len(month.jobs)
    add_trouble(month)
    judged = judge(month.incidents, month.play())
    print(f"{'trouble':<40} {'minutes':>8} {'promise':>8}")
    for kind, (took, promise) in judged.found.items():
        print(f"{kind:<40} {took:>8} {promise:>8}")
    for firing in judged.false_pages:
        print(f"false page: {firing}")
    ended = os.times()
    cpu_s = round(ended.user + ended.system + ended.children_user + ended.children_system)
    tickets = Counter(firing.alert for firing in judged.other)
    goals = {
        "no_false_page": not judged.false_pages,
        "all_trouble_found_in_time": not judged.missed and len(judged.found) >= KINDS,
        f"{JOBS}_jobs": jobs >= JOBS,
    }
    print(json.dumps({"jobs": jobs, "cpu_s": cpu_s, "happened": month.happened, "missed": judged.missed, "tickets": tickets, "goals": goals}))  # fmt: skip


if __name__ == "__main__":
    main()
