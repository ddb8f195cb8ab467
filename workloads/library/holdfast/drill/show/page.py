"""One HTML page of a journal: verdict on top, no script, nothing fetched, readable in print and in the dark."""

import json
from collections.abc import Container, Sequence
from html import escape
from typing import Any

from holdfast.drill.plan import Blast
from holdfast.drill.show.numbers import change, number, sentence

_MARKS = {"held": "✓", "broken": "✗", "not measured": "–", "inconclusive": "?", "stopped": "■"}
_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --open: #9a6700; --line: #8884; --soft: #6e7781; }
body { background: Canvas; color: CanvasText; font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: .5rem solid var(--open); padding: .5rem 1rem; font-weight: 600; }
.verdict.held { border-color: var(--good); } .verdict.broken { border-color: var(--bad); }
td.held { color: var(--good); } td.broken { color: var(--bad); font-weight: 600; } td.not { color: var(--open); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td { overflow-wrap: break-word; } th, td:first-child { white-space: nowrap; } th:last-child, td:last-child { padding-right: 0; }
.n { text-align: right; } pre { overflow-x: auto; font-size: .8rem; } details { margin-top: 2rem; }
@media (prefers-color-scheme: dark) {
  :root { --good: #3fb950; --bad: #ff7b72; --open: #d29922; --soft: #9198a1; } }
@media (max-width: 40rem) {
  td:first-child { white-space: normal; } td:last-child { overflow-wrap: anywhere; }
  .wide thead { display: none; } .wide tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .wide td { display: grid; grid-template-columns: 6rem minmax(0, 1fr); border: 0; padding: 0; text-align: left; }
  .wide td:first-child { display: block; font-weight: 600; } .wide td:not(:first-child)::before {
    content: attr(data-of); color: var(--soft); font-weight: 400; } }
@media print { details { display: none; } }
"""


def page(journal: dict[str, Any]) -> str:
    drill = journal["drill"]
    verdict = journal["verdict"]
    body = [
        f"<h1>{escape(drill['question'])}</h1>",
        f'<p class="verdict {escape(verdict)}">{_MARKS[verdict]} {escape(sentence(journal))}</p>',
        *_objectives(journal["objectives"]),
        *_timeline(journal["timeline"]),
        *_plan(drill),
        *_steps(journal),
        f"<details><summary>Journal</summary><pre>{escape(json.dumps(journal, indent=1, default=str))}</pre></details>",
    ]
    title = escape(f"Drill {drill['name']}: {verdict}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body><main>\n{_lines(body)}</main></body></html>\n'


def _objectives(objectives: list[dict[str, Any]]) -> list[str]:
    if not objectives:
        return ["<p>Nothing was injected, so nothing was judged.</p>"]
    head = ("Objective", "Verdict", "Wanted", "Measured", "Last run", "Change")
    rows = [
        (
            each["promise"],
            f"{_MARKS[each['verdict']]} {each['verdict']}",
            each["wanted"],
            number(each["measured"]),
            number(each["last"]),
            change(each),
        )
        for each in objectives
    ]
    return ["<h2>Objectives</h2>", _table(head, rows, numbers=(3, 4, 5), verdicts=[o["verdict"] for o in objectives])]


def _timeline(timeline: list[dict[str, str]]) -> list[str]:
    rows = [(each["t"][11:19], each["step"], each["what"]) for each in timeline]
    return ["<h2>What happened</h2>", _table(("UTC", "Step", "What"), rows)]


def _plan(drill: dict[str, Any]) -> list[str]:
    budget = drill["budget"]
    plan = {
        "Target": f"{drill['place']}, {drill['work']}",
        "Fault": drill["fault"],
        "Blast radius": str(Blast(**drill["blast"])),
        "Rollback": drill["rollback"],
        "Budget": f"{budget['minutes']:g} min, ${budget['usd']:g}",
    }
    return ["<h2>The drill</h2>", _table(("Part", "As planned"), list(plan.items()))]


def _steps(journal: dict[str, Any]) -> list[str]:
    rows = [
        (phase.removesuffix("s"), each["name"], "done" if each["succeeded"] else "failed", f"{each['duration']:.1f}")
        for phase in ("run", "rollbacks")
        for each in journal[phase]
    ]
    return ["<h2>Steps</h2>", _table(("Part", "Step", "Status", "Seconds"), rows, numbers=(3,))]


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Container[int] = (), verdicts: Sequence[str] = ()
) -> str:
    """`numbers`: columns aligned right; `words`: of each row, the verdict that its second cell bears as its class.

    Each cell names its column: on a narrow screen a row with a verdict is a block of lines.
    """

    def cell(row: int, column: int, text: str) -> str:
        styles = [*(["n"] if column in numbers else []), *([verdicts[row]] if verdicts and column == 1 else [])]
        style = f' class="{escape(" ".join(styles))}"' if styles else ""
        return f'<td{style} data-of="{escape(head[column])}">{escape(text)}</td>'

    titles = "".join(f"<th{' class=n' if n in numbers else ''}>{escape(title)}</th>" for n, title in enumerate(head))
    body = [f"<tr>{''.join(cell(n, c, text) for c, text in enumerate(row))}</tr>" for n, row in enumerate(rows)]
    wide = ' class="wide"' if verdicts else ""
    return f"<table{wide}><thead><tr>{titles}</tr></thead><tbody>\n{_lines(body)}</tbody></table>"


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
