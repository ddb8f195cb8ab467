"""The page of figures, made from the last result of each bench.

`python -m workloads.library.tests.bench.figures record bench-lint [NAME=VALUE...]` runs a make
target, keeps its last JSON line under `recorded/` with day and machine, prints the figures that
changed by half or more, and writes the page; without arguments only the page is written. The
README's few rows are written with it. `record bench-training ONLY="PART ..."`, or SECTIONS where a
bench has these, replaces only these parts of the recorded result.
"""

import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.result import SECTION_TIME

Result = dict[str, Any]
HERE = Path(__file__).parent
ROOT = HERE.parents[3]
RECORDED = HERE / "recorded"
PAGE = HERE / "FIGURES.md"
README = ROOT / "README.md"
BEGIN = "<!-- figures:begin -->"
END = "<!-- figures:end -->"
HEAD = """# Figures

What each bench measured when it ran last, and which of its goals it met. Where nothing else is
said, a lost machine is simulated: all processes ran on one machine, and those of a node were
killed. Every figure is in `recorded/BENCH.json`. Machines differ and are noisy: read the ratios,
which compare within one run. To run a bench again, record it and write this page:

```sh
python -m workloads.library.tests.bench.figures record TARGET
```
"""
VERDICTS: dict[bool | str, str] = {
    True: "Met",
    False: "**Missed**",
    "not run": "Not run",
}
"""Labels of a goal's verdict; "not run" means that the machine lacks what the bench needs."""
TEXTS: dict[str, Result] = tomllib.loads((HERE / "figures.toml").read_text())
"""The sentences for each bench, which are filled in from its recorded result."""


def main() -> None:
    if sys.argv[1:2] == ["record"] and len(sys.argv) > 2:
        record(*sys.argv[2:])
    elif len(sys.argv) > 1:
        sys.exit(
            f"error: got {' '.join(sys.argv[1:])}; allowed: nothing, or record TARGET"
            " [NAME=VALUE...]"
        )
    PAGE.write_text(page(RECORDED))
    README.write_text(with_summary(README.read_text(), summary(RECORDED)))


def record(target: str, *settings: str) -> None:
    """Runs a make target and keeps its result.

    A bench that misses a goal exits with 1 and is recorded all the same; one that fails prints no
    result.
    """
    last_line = ""
    with subprocess.Popen(
        ["make", target, *settings],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as bench:
        for line in bench.stdout or ():
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
    try:
        result = json.loads(last_line)
    except ValueError:
        result = None
    if not (isinstance(result, dict) and result.get("goals")):
        sys.exit(
            f"error: {target} ended with {bench.returncode} and without its JSON line; nothing was"
            " recorded"
        )
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    file = RECORDED / f"{target}.json"
    facts = {
        "command": " ".join(("make", target, *settings)),
        "day": day,
        "machine": machine(),
        "result": result,
    }
    is_partial = any(setting.startswith(("ONLY=", "SECTIONS=")) for setting in settings)
    if file.exists() and is_partial:
        facts = _replace_parts(json.loads(file.read_text()), result, day)
    if file.exists():
        before = json.loads(file.read_text())
        for change in list_changes(before["result"], facts["result"]):
            print(f"since {before['day']}: {change}", file=sys.stderr)
    RECORDED.mkdir(exist_ok=True)
    file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def list_changes(before: Result, after: Result) -> list[str]:
    """Lists the figures that grew or shrank by half or more.

    Most figures have no goal, and one that got worse would be replaced without a word.
    """
    old_figures = dict(_list_figures(before))
    changes: list[str] = []
    for name, figure in _list_figures(after):
        old_figure = old_figures.get(name)
        if old_figure and not 2 / 3 < figure / old_figure < 3 / 2:
            changes.append(f"{name} {old_figure:g} -> {figure:g}")
    return changes


def _list_figures(result: Result, prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in result.items():
        if isinstance(value, dict):
            yield from _list_figures(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


def _replace_parts(recorded: Result, partial: Result, day: str) -> Result:
    """Returns `recorded` with the parts that the partial result has, and the day of each.

    The figures of a section are either one part with its name, or several parts of their own.
    """
    whole = recorded["result"]
    parts: Result = {}
    for name, value in partial.items():
        if isinstance(value, dict) and name != "goals":
            parts[name] = value
    names = [*parts]
    for name in partial:
        section = name.removesuffix(SECTION_TIME)
        if section in (name, *parts) or f"{section}_not_run" in partial:
            continue
        names.append(section)
    if len(names) > len(parts):
        parts = partial
    goals = dict(whole["goals"])
    for goal, verdict in partial["goals"].items():
        if verdict != "not run" or goal not in goals:
            goals[goal] = verdict
    days = {**recorded.get("parts", {}), **dict.fromkeys(names, day)}
    return {
        **recorded,
        "parts": days,
        "result": {**whole, **parts, "goals": goals},
    }


def machine() -> str:
    """Describes cores, memory and processor, as far as the system tells."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = []
        for line in cpuinfo.read_text().splitlines():
            if "model name" in line:
                models.append(line)
    else:
        models = []
    if models:
        model = models[0].partition(":")[2].strip()
    else:
        model = platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, {model}"


def page(folder: Path) -> str:
    recorded = []
    for file in sorted(folder.glob("*.json")):
        recorded.append(json.loads(file.read_text()))
    sections = "".join(f"\n{section(bench)}" for bench in recorded)
    return f"{HEAD}\n{table(folder)}\n{sections}"


def table(folder: Path) -> str:
    """Makes the table on top of the page: a row for each recorded bench."""
    rows = ["| command | what it measured | goals met | day |", "|---|---|---|---|"]
    for target, text in TEXTS.items():
        file = folder / f"{target}.json"
        if not file.exists():
            continue
        recorded = json.loads(file.read_text())
        goals = [*recorded["result"]["goals"].values()]
        sentence = text["headline"].format(**recorded["result"])
        rows.append(
            f"| `make {target}` | {sentence}. | {goals.count(True)} of {len(goals)} |"
            f" {recorded['day']} |"
        )
    return "\n".join(rows)


def summary(folder: Path) -> str:
    """Makes the table between the figures' markers of the README: the benches with a `readme`."""
    rows = ["| Measured | Without | Holdfast | Command |", "|---|---|---|---|"]
    for target, text in TEXTS.items():
        if "readme" in text:
            result = json.loads((folder / f"{target}.json").read_text())["result"]
            cells = [cell.format(**result) for cell in text["readme"]]
            rows.append(f"| {' | '.join(cells)} | `make {target}` |")
    return "\n".join(rows)


def with_summary(readme: str, rows: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{rows}\n{END}{rest.partition(END)[2]}"


def section(recorded: Result) -> str:
    result = recorded["result"]
    goals: dict[str, bool | str] = result["goals"]
    target = recorded["command"].split()[1]
    lines = [f"## `{recorded['command']}`", ""]
    for template in TEXTS.get(target, {}).get("more", ()):
        lines += _fill_in(template, result)
    parts = recorded.get("parts", {})
    days = "".join(f", {part} {day}" for part, day in parts.items())
    met = [*goals.values()].count(True)
    lines.append(
        f"{recorded['day']}{days}; {recorded['machine']}; {met} of {len(goals)} goals met."
    )
    lines.append("")
    for verdict, label in VERDICTS.items():
        names = []
        for name in goals:
            if goals[name] == verdict:
                names.append(name.replace("_", " "))
        if names:
            lines.append(f"- {label}: {'; '.join(names)}.")
    return "\n".join([*lines, ""])


def _fill_in(template: str, result: Result) -> list[str]:
    try:
        return [template.format(**result), ""]
    except KeyError:  # a record from before this part
        return []


if __name__ == "__main__":
    main()
