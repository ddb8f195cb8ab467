"""The page of figures, from what the benches said last.

`python -m tests.bench.figures record bench-lint [NAME=VALUE...]` runs a make target, keeps its last JSON line under
`recorded/` with day and machine, and writes the page anew; without arguments only the page is written.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDED = HERE / "recorded"
PAGE = HERE / "FIGURES.md"
HEAD = """# Figures

Written by `python -m tests.bench.figures` from what each bench printed last, goals that were missed included.
`python -m tests.bench.figures record TARGET` runs one anew and records it. Machines differ and are noisy: read the
ratios, which compare within one run.
"""
VERDICTS: dict[bool | str, str] = {True: "met", False: "**missed**", "not run": "not run"}
"""Of a goal; a bench says "not run" where the machine lacks what it takes."""
LIST_SHOWN = 6


def main() -> None:
    if sys.argv[1:2] == ["record"] and len(sys.argv) > 2:
        record(*sys.argv[2:])
    elif len(sys.argv) > 1:
        sys.exit(f"error: got {' '.join(sys.argv[1:])}; allowed: nothing, or record TARGET [NAME=VALUE...]")
    PAGE.write_text(page(RECORDED))


def record(target: str, *settings: str) -> None:
    """A bench that misses a goal exits with 1 and is recorded all the same; one that fails has no last line."""
    last = ""
    with subprocess.Popen(["make", target, *settings], cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not (isinstance(found, dict) and found.get("goals")):
        sys.exit(f"error: {target} ended with {bench.returncode} and without its JSON line; nothing was recorded")
    facts = {"command": " ".join(("make", target, *settings)), "day": f"{datetime.now(UTC):%Y-%m-%d}"}
    RECORDED.mkdir(exist_ok=True)
    text = json.dumps({**facts, "machine": machine(), "result": found}, indent=1, ensure_ascii=False)
    (RECORDED / f"{target}.json").write_text(text + "\n")


def machine() -> str:
    """Cores, memory and processor, as far as the system tells."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    model = models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, {model}"


def page(folder: Path) -> str:
    recorded = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return HEAD + "".join(f"\n{section(one)}" for one in recorded)


def section(recorded: dict[str, Any]) -> str:
    result = dict(recorded["result"])
    goals: dict[str, bool | str] = result.pop("goals")
    result.pop("schema", None)
    met = sum(kept is True for kept in goals.values())
    judged = [f"| {words(name)} | {VERDICTS[kept]} |" for name, kept in goals.items()]
    rows = [f"| {name} | {value} |" for name, value in flat(result)]
    return (
        f"## `{recorded['command']}`\n\n{recorded['day']}; {recorded['machine']}; {met} of {len(goals)} goals met.\n\n"
        + "\n".join(["| goal | |", "|---|---|", *judged, "", "| figure | |", "|---|---|", *rows, ""])
    )


def flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Every figure with the names that lead to it; long lists only by their length."""
    if isinstance(value, dict):
        return [
            row for key, inner in value.items() for row in flat(inner, f"{name}, {words(key)}" if name else words(key))
        ]
    if isinstance(value, list) and (len(value) > LIST_SHOWN or any(isinstance(one, dict | list) for one in value)):
        return [(name, f"{len(value)} rows")]
    return [(name, ", ".join(map(shown, value)) if isinstance(value, list) else shown(value))]


def words(key: str) -> str:
    return str(key).replace("_", " ").replace("|", "/")


def shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else words(value)


if __name__ == "__main__":
    main()
