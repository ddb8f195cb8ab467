"""One HTML page of a journal: verdict on top, no script, nothing fetched, readable in print and in the dark."""

import json
from html import escape
from typing import Any

from workloads.drill.show.numbers import change, number, sentence

_MARKS = {"held": "✓", "broken": "✗", "not measured": "–", "inconclusive": "?", "stopped": "■"}
_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: .5rem solid var(--line); padding: .5rem 1rem; font-weight: 600; }
.verdict.held { border-color: var(--good); } .verdict.broken { border-color: var(--bad); }
td.held { color: var(--good); } td.broken { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
.n { text-align: right; } pre { overflow-x: auto; font-size: .8rem; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #ff7b72; } }
@media print { details { display: none; } }
"""


def page(journal: dict[str, Any]) -> str:
    drill = journal["experiment"]["extensions"][0]["drill"]
    word = journal["verdict"]
    body = [
        f"<h1>{escape(drill['question'])}</h1>",
        f'<p class="verdict {escape(word)}">{_MARKS[word]} {escape(sentence(journal))}</p>',
        *_objectives(journal["objectives"]),
        *_timeline(journal["timeline"]),
        *_plan(drill),
        *_steps(journal),
        f"<details><summary>Journal</summary><pre>{escape(json.dumps(journal, indent=1, default=str))}</pre></details>",
    ]
    title = escape(f"Drill {drill['name']}: {word}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body><main>\n{_lines(body)}</main></body></html>\n'


def _objectives(objectives: list[dict[str, Any]]) -> list[str]:
    if not objectives:
        return ["<p>Nothing was injected, so nothing was judged.</p>"]
    rows = [
        f"<tr><td>{escape(each['promise'])}</td>"
        f'<td class="{escape(each["verdict"])}">{_MARKS[each["verdict"]]} {escape(each["verdict"])}</td>'
        f"<td>{escape(each['wanted'])}</td>"
        f'<td class="n">{number(each["measured"])}</td><td class="n">{number(each["last"])}</td>'
        f'<td class="n">{change(each)}</td></tr>'
        for each in objectives
    ]
    head = '<th>Objective</th><th>Verdict</th><th>Wanted</th><th class="n">Measured</th>'
    head += '<th class="n">Last run</th><th class="n">Change</th>'
    return ["<h2>Objectives</h2>", _table(head, rows)]


def _timeline(timeline: list[dict[str, str]]) -> list[str]:
    rows = [
        f"<tr><td>{escape(each['t'][11:19])}</td><td>{escape(each['step'])}</td><td>{escape(each['what'])}</td></tr>"
        for each in timeline
    ]
    return ["<h2>What happened</h2>", _table("<th>When (UTC)</th><th>Step</th><th>What</th>", rows)]


def _plan(drill: dict[str, Any]) -> list[str]:
    blast, budget = drill["blast"], drill["budget"]
    told = {
        "Target": f"{drill['place']}, {drill['work']}",
        "Fault": drill["fault"],
        "Blast radius": f"at most {blast['most']} {blast['of']}, at most {blast['percent']} %",
        "Rollback": drill["rollback"],
        "Budget": f"{budget['minutes']:g} min, ${budget['usd']:g}",
    }
    rows = [f"<tr><td>{escape(name)}</td><td>{escape(words)}</td></tr>" for name, words in told.items()]
    return ["<h2>The drill</h2>", _table("<th>Part</th><th>As planned</th>", rows)]


def _steps(journal: dict[str, Any]) -> list[str]:
    rows = [
        f"<tr><td>{escape(part)}</td><td>{escape(each['activity']['name'])}</td><td>{escape(each['status'])}</td>"
        f'<td class="n">{each["duration"]:.1f}</td></tr>'
        for part in ("run", "rollbacks")
        for each in journal[part]
    ]
    head = '<th>Part</th><th>Step</th><th>Status</th><th class="n">Seconds</th>'
    return ["<h2>Steps</h2>", _table(head, rows)]


def _table(head: str, rows: list[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{_lines(rows)}</tbody></table></div>'


def _lines(parts: list[str]) -> str:
    return "".join(f"{part}\n" for part in parts)
