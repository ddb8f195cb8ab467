"""Several runs of one drill read together: how often each promise held, and how far its number spreads.

Pure: journals in. What was not measured is neither held nor broken.
"""

from collections import Counter
from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any

SCHEMA = "holdfast.drill-series/1"
CONFIDENCE = 0.9


def series(journals: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The object that --json prints for a drill that was repeated."""
    verdicts = Counter(journal["verdict"] for journal in journals)
    judged = verdicts["held"] + verdicts["broken"]
    by_promise: dict[str, list[dict[str, Any]]] = {}
    for each in (each for journal in journals for each in journal["objectives"]):
        by_promise.setdefault(each["promise"], []).append(each)
    return {
        "schema": SCHEMA,
        "drill": journals[0]["drill"]["name"],
        "runs": len(journals),
        "held": verdicts["held"],
        "judged": judged,
        "verdicts": dict(verdicts),
        "confidence": CONFIDENCE,
        "holds_at_least": floor(verdicts["held"], judged),
        "objectives": [_spread(seen) for seen in by_promise.values()],
    }


def _spread(seen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    numbers = [each["measured"] for each in seen if each["measured"] is not None]
    return {
        "promise": seen[0]["promise"],
        "wanted": seen[0]["wanted"],
        "held": sum(each["verdict"] == "held" for each in seen),
        "judged": len(numbers),
        "not_measured": len(seen) - len(numbers),
        "least": min(numbers, default=None),
        "median": median(numbers) if numbers else None,
        "most": max(numbers, default=None),
    }


def floor(held: int, judged: int, confidence: float = CONFIDENCE) -> float | None:
    """The share of runs in which it holds at least, by Clopper and Pearson's exact one-sided bound."""
    if not judged:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):  # the chance of this many by luck grows with the share: halve the interval
        middle = (low + high) / 2
        lucky = sum(comb(judged, k) * middle**k * (1 - middle) ** (judged - k) for k in range(held, judged + 1))
        low, high = (middle, high) if lucky < 1 - confidence else (low, middle)
    return round(low, 4)
