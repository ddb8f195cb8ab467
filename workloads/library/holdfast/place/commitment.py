"""Capacity that is paid for a term, used or not: a committed use or a reservation by calendar, at the user's price.

No price of either ships with Holdfast: they are of a contract, and no source of the price table has them.
"""

import math
import re
from dataclasses import dataclass

from holdfast.contract.errors import InputError
from holdfast.contract.values import between
from holdfast.place.belief import Option
from holdfast.place.job import Job, duration_h

MAX_USD = 1_000.0
HOURS_A_DAY, MAX_TERM_DAYS = 24.0, 1_100.0  # three years and a little


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    usd_per_gpu_hour: float
    """All in: GPU with its share of cores and memory."""
    term_h: float

    def __post_init__(self) -> None:
        between(
            "committed price", self.usd_per_gpu_hour, 1e-3, MAX_USD, fix="USD a GPU-hour, as in --committed 1.90/30d"
        )
        between(
            "committed term in days",
            self.term_h / HOURS_A_DAY,
            1,
            MAX_TERM_DAYS,
            fix="days, as in --committed 1.90/30d",
        )

    def terms(self, job: Job) -> int:
        """How many in a row the job alone needs."""
        return math.ceil((job.hours + job.restart_h) / self.term_h)

    def usd(self, job: Job) -> float:
        """Of all the terms that the job needs; what it leaves unused is paid too."""
        return self.usd_per_gpu_hour * job.gpus * self.term_h * self.terms(job)

    def even_h(self, job: Job, other: Option) -> float:
        """Hours of such work within one term from which on the commitment is cheaper than `other`."""
        return self.usd_per_gpu_hour * job.gpus * self.term_h / (other.mean_usd / job.hours)


def parse(text: str) -> Commitment | None:
    """`1.90/30d`: USD a GPU-hour, then the term; None for empty text."""
    if not text:
        return None
    price, _, term = text.partition("/")
    if not (re.fullmatch(r"\d+(\.\d+)?", price.strip()) and term):
        raise InputError(
            "--committed", got=text, allowed="USD a GPU-hour, a slash and the term",
            fix="as in --committed 1.90/30d, of your contract or reservation",
        )  # fmt: skip
    return Commitment(usd_per_gpu_hour=float(price), term_h=duration_h(term, "committed term"))
