"""Several runs of one drill read together: how often each promise held, and how far its number spreads.

Pure: journals in. What was not measured is neither held nor broken.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import median
from typing import Any

SCHEMA = "holdfast.drill-series/1"
CONFIDENCE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    promise: str
    wanted: str
    held: int
    judged: int
    not_measured: int
    """Runs that injected the fault and could not measure."""
    least: float | None
    median: float | None
    most: float | None


def series(journals: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The object that --json prints for a drill that was repeated."""
    verdicts = Counter(journal["verdict"] for journal in journals)
    judged = verdicts["held"] + verdicts["broken"]
    return {
        "schema": SCHEMA,
        "drill": journals[0]["drill"]["name"],
        "runs": len(journals),
        "held": verdicts["held"],
        "judged": judged,
        "verdicts": dict(verdicts),
        "confidence": CONFIDENCE,
        "holds_at_least": floor(verdicts["held"], judged),
        "objectives": [asdict(each) for each in spreads(journals)],
    }


def spreads(journals: Sequence[dict[str, Any]]) -> list[Spread]:
    runs = [{each["promise"]: each for each in journal["objectives"]} for journal in journals]
    first = {promise: each for run in reversed(runs) for promise, each in run.items()}
    return [_spread(promise, each, [run[promise] for run in runs if promise in run]) for promise, each in first.items()]


def _spread(promise: str, first: dict[str, Any], seen: Sequence[dict[str, Any]]) -> Spread:
    numbers = [each["measured"] for each in seen if each["measured"] is not None]
    return Spread(
        promise=promise,
        wanted=first["wanted"],
        held=sum(each["verdict"] == "held" for each in seen),
        judged=len(numbers),
        not_measured=len(seen) - len(numbers),
        least=min(numbers, default=None),
        median=median(numbers) if numbers else None,
        most=max(numbers, default=None),
    )


def floor(held: int, judged: int, confidence: float = CONFIDENCE) -> float | None:
    """The share of runs in which it holds at least, by Clopper and Pearson's exact one-sided bound."""
    if not judged:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):  # the chance of so many by luck grows with the share: halve the interval
        middle = (low + high) / 2
        lucky = sum(comb(judged, k) * middle**k * (1 - middle) ** (judged - k) for k in range(held, judged + 1))
        low, high = (middle, high) if lucky < 1 - confidence else (low, middle)
    return round(low, 4)
