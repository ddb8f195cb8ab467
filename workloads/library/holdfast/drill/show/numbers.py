"""Numbers as every report writes them."""

from typing import Any

from holdfast.drill.plan import RECOVERED


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def change(objective: dict[str, Any]) -> str:
    """Against the run before: `+0.3`, `same`, or nothing to compare with."""
    measured, last = objective["measured"], objective["last"]
    if measured is None or last is None:
        return "-"
    difference = round(measured - last, 2)
    return f"{difference:+.4g}" if difference else "same"


def sentence(journal: dict[str, Any]) -> str:
    """The whole outcome in one line."""
    drill = journal["drill"]["name"]
    objectives = journal["objectives"]
    held = sum(each["verdict"] == "held" for each in objectives)
    clauses = [f"{drill}: {journal['verdict']}"]
    if objectives:
        clauses.append(f"{held} of {len(objectives)} objectives held")
    broken = [each["promise"] for each in objectives if each["verdict"] == "broken"]
    if broken:
        clauses.append(f"broken: {', '.join(broken)}")
    back = next((o["measured"] for o in objectives if o["metric"] == RECOVERED and o["measured"] is not None), None)
    if back is not None and journal["verdict"] == "held":
        clauses.append(f"back after {back:.1f} s")
    if journal["fail_step"]:
        clauses.append(f"at step `{journal['fail_step']}`: {journal['why'].splitlines()[0]}")
    return "; ".join(clauses) + f" ({journal['duration']:.0f} s)"


def together(series: dict[str, Any]) -> str:
    """Several runs of one drill in one line."""
    clauses = [f"{series['drill']}: held in {series['held']} of {series['judged']} judged runs"]
    if series["judged"] < series["runs"]:
        clauses.append(f"{series['runs'] - series['judged']} of {series['runs']} showed nothing")
    if series["holds_at_least"] is not None:
        share = f"{100 * series['holds_at_least']:.0f} %"
        clauses.append(f"so it holds in at least {share} of runs ({100 * series['confidence']:.0f} % confidence)")
    return "; ".join(clauses)
