"""The page of figures, from what the benches said last.

`python -m workloads.library.tests.bench.figures record bench-lint [NAME=VALUE...]` runs a make target, keeps its last JSON line under
`recorded/` with day and machine, and writes the page; without arguments only the page is written. The README's
table of figures is written with it. `record bench-training ONLY="PART ..."` replaces these parts of what was recorded.
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
ROOT = HERE.parents[3]
RECORDED = HERE / "recorded"
PAGE = HERE / "FIGURES.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
HEAD = """# Figures

The headline and the goals of each bench, as it ran last. Every figure is in `recorded/BENCH.json`.
`python -m workloads.library.tests.bench.figures record TARGET` runs a bench again, records it and writes this page. Machines differ and are
noisy: read the ratios, which compare within one run.
"""
VERDICTS: dict[bool | str, str] = {True: "Met", False: "**Missed**", "not run": "Not run"}
"""Of a goal; a bench says "not run" where the machine lacks what it takes."""
# What the README says of each bench, filled in from its recorded result.
HEADLINES = {
    "bench-training": "first step {restarts[first_step_s][holdfast]:.1f} s after a restart (torchrun with DCP"
    " {restarts[first_step_s][torchrun + dcp.async_save]:.1f}); useful share with one eviction"
    " in 5 min {longest[share][holdfast]:.0%} (naive {longest[share][naive]:.0%}, torchrun"
    " {longest[share][torchrun + dcp.async_save]:.0%}), in 100 s {goodput[share][holdfast]:.0%} ({goodput[share][naive]:.0%},"
    " {goodput[share][torchrun + dcp.async_save]:.0%});"
    " Ray's preemption plan: {plan[wasted_steps][with notice]} wasted steps (Ray {plan[published][just-in-time saves]})",
    "bench-checkpoint": "{corruption[holdfast][injected]} damaged checkpoints, {corruption[holdfast][undetected]} loaded"
    " (DCP {corruption[dcp][undetected]})",
    "bench-gpu": "saving {mib:,} MiB blocks an H100 for {rows[holdfast][blocking]:.3f} s, under `lock()`"
    " {rows[holdfast lock()][blocking]:.3f} (bare copy {rows[plain copy][blocking]:.3f}, NVRx {rows[nvrx local][blocking]:.3f},"
    " DCP {rows[dcp.async PROCESS shm, overlapped][blocking]:.2f})",
    "bench-elastic": "next step {median_s[death]:.2f} s after a node dies (rigid gang"
    " {rivals[holdfast rigid][death_s]:.1f}, torchft tuned {rivals[torchft tuned][death_s]:.1f}, stock"
    " {rivals[torchft stock][death_s]:.1f})",
    "bench-peers": "a lost node of a sharded gang costs {rows[copies][lost_steps_worst]} of {cadence} steps between copies; next"
    " step {rows[copies][first_step_s]:.1f} s after its replacement (bucket {rows[no copies][first_step_s]:.1f},"
    " torchrun with DCP {rows[torchrun with DCP][first_step_s]:.1f})",
    "bench-peer-kills": "{kills} kills in sharded gangs: {wrong} wrong restores, {stuck} stuck, {commits_by_zombies}"
    " zombie commits",
    "bench-batch": "{kills} kills: {kills_lost} items lost, {kills_duplicated} stored twice;"
    " {ours_share_of_bare_loop:.0%} of a bare loop's throughput",
    "bench-server": "{drains_posts:,} requests through {drains_actions} evictions and roll-outs: {drains_failed} failed",
    "bench-placement": "1,000 jobs x 200 starts x all policies in {cpu_seconds:.1f} s of CPU; the chosen policy costs"
    " {above_optimum_percent[70 h]:.1f} % more than one that knows the future",
    "bench-month": "a month of {jobs} jobs, {happened[evictions]} evictions and {happened[droughts]} droughts under the real alerts",
    "bench-monitoring": "{figures[events]:,} events read in {figures[read_s]:.0f} s; a loss is seen after"
    " {figures[lag_p50_s]:.1f} s among {figures[pods]:,} pods",
    "bench-lint": "{files:,} manifests in {seconds:.0f} s; precision {precision:.0%}, recall {recall:.0%}",
    "bench-synth": "all stacks of the example in {wall_s:.1f} s (with CDKTF's own import {plain_wall_s:.0f})",
    "bench-cluster": "{figures[pods_hit]:,} of {figures[pods]:,} simulated pods evicted at once: steady after"
    " {figures[steady_s]:.0f} s, {figures[charged]} failures charged",
}
# What the page also says, of parts that were recorded.
PARTS = (
    "{gpu}, PyTorch {torch}. {remarks}",
    "With 16 cores (the machine of `bench-gpu`, {on 16 cores[mb]:,} MB of state, {on 16 cores[met]} of 9 goals met): next step"
    " {on 16 cores[rows][copies][first_step_s]:.1f} s after a replacement (bucket"
    " {on 16 cores[rows][no copies][first_step_s]:.1f}, rigid {on 16 cores[rows][holdfast rigid][first_step_s]:.1f},"
    " torchrun with DCP {on 16 cores[rows][torchrun with DCP][first_step_s]:.1f}). The restore takes"
    " {on 16 cores[rows][copies][restore_s]:.2f} s (bucket {on 16 cores[rows][no copies][restore_s]:.2f}); meeting and fork,"
    " {on 16 cores[rows][copies][parts_s][0]:.2f} s, and the program's own state,"
    " {on 16 cores[rows][copies][parts_s][2]:.2f} s, alone take a quarter of the bucket's restore. Copies cost"
    " {on 16 cores[cost][processor]:.1%} of the processors and {on 16 cores[memory]:.1f} shards of memory.",
    "Ray's published plan, {plan[preemptions]} preemptions in {plan[steps]:,} steps on 8 nodes (here processes of one machine),"
    " a save every 400. Wasted steps:"
    " {plan[wasted_steps][with notice]} with notice, {plan[wasted_steps][without notice]} where the node is lost without one; Ray"
    " published {plan[published][just-in-time saves]} with just-in-time saves and {plan[published][periodic saves]} without.",
    "Useful share with 95 % confidence, {goodput[turns]} turns of {goodput[minutes][holdfast]:.0f} minutes in all:"
    " {goodput[interval][holdfast][0]:.1%} to {goodput[interval][holdfast][1]:.1%}"
    " (naive {goodput[interval][naive][0]:.1%} to {goodput[interval][naive][1]:.1%}). Seconds of a turn, ours and naive:"
    " start {goodput[where the time went][holdfast][start]} and {goodput[where the time went][naive][start]}, lost steps"
    " {goodput[where the time went][holdfast][lost]} and {goodput[where the time went][naive][lost]}, slower steps"
    " {goodput[where the time went][holdfast][slower]} and {goodput[where the time went][naive][slower]}. Both save every"
    " 50 steps, on cores that the ranks fill. The naive twin writes without fsync and checksum, and exits with 0, so"
    " Kubernetes would count its Job as complete.",
    "First save of a start, median of five starts: {first_save[over_median]:.2f} times the median save (a plain copy of the"
    " same bytes to memory that was touched before: {first_save[copy_over_median]:.2f}), and"
    " {first_save[over_fresh_copy]:.2f} times a plain copy to fresh memory.",
    "95th percentile of a step with a spare core, over one alone: {spare_core[upload][p95]:.2f} during an upload,"
    " {spare_core[copy][p95]:.2f} ({spare_core[copy][p95_95_percent][0]:.2f} to {spare_core[copy][p95_95_percent][1]:.2f} with"
    " 95 %) while a process without a library copies and writes the same bytes, {spare_core[spin][p95]:.2f} next to a process"
    " that only computes. Upload over such a copy: {spare_core[upload over copy][p95]:.2f}"
    " ({spare_core[upload over copy][p95_95_percent][0]:.2f} to {spare_core[upload over copy][p95_95_percent][1]:.2f}).",
    "Useful share in one run of {longest[minutes][holdfast]:.0f} minutes with {longest[turns]} evictions, with 95 % confidence:"
    " {longest[interval][holdfast][0]:.1%} to {longest[interval][holdfast][1]:.1%} (naive {longest[interval][naive][0]:.1%} to"
    " {longest[interval][naive][1]:.1%}, torchrun {longest[interval][torchrun + dcp.async_save][0]:.1%} to"
    " {longest[interval][torchrun + dcp.async_save][1]:.1%}). Each step waits as for a GPU, and the variants run side by side.",
)


def main() -> None:
    if sys.argv[1:2] == ["record"] and len(sys.argv) > 2:
        record(*sys.argv[2:])
    elif len(sys.argv) > 1:
        sys.exit(f"error: got {' '.join(sys.argv[1:])}; allowed: nothing, or record TARGET [NAME=VALUE...]")
    PAGE.write_text(page(RECORDED))
    README.write_text(with_summary(README.read_text(), summary(RECORDED)))


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
    day, file = f"{datetime.now(UTC):%Y-%m-%d}", RECORDED / f"{target}.json"
    facts = {"command": " ".join(("make", target, *settings)), "day": day, "machine": machine(), "result": found}
    if file.exists() and any(setting.startswith("ONLY=") for setting in settings):
        facts = _with_parts(json.loads(file.read_text()), found, day)
    RECORDED.mkdir(exist_ok=True)
    file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _with_parts(recorded: dict[str, Any], found: dict[str, Any], day: str) -> dict[str, Any]:
    """`recorded` with the parts of a bench that `found` has, and the day of each."""
    whole = recorded["result"]
    parts = {name: value for name, value in found.items() if isinstance(value, dict) and name != "goals"}
    result = {**whole, **parts, "goals": {**whole["goals"], **found["goals"]}}
    return {**recorded, "parts": {**recorded.get("parts", {}), **dict.fromkeys(parts, day)}, "result": result}


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


def summary(folder: Path) -> str:
    """The table between the figures' markers of the README: a line for each bench."""
    rows = ["| command | headline | goals met | day |", "|---|---|---|---|"]
    for target, headline in HEADLINES.items():
        recorded = json.loads((folder / f"{target}.json").read_text())
        goals = [*recorded["result"]["goals"].values()]
        sentence = headline.format(**recorded["result"])
        rows.append(f"| `make {target}` | {sentence} | {goals.count(True)} of {len(goals)} | {recorded['day']} |")
    return "\n".join(rows)


def with_summary(readme: str, table: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def section(recorded: dict[str, Any]) -> str:
    result = recorded["result"]
    goals: dict[str, bool | str] = result["goals"]
    target = recorded["command"].split()[1]
    lines = [f"## `{recorded['command']}`", ""]
    if target in HEADLINES:
        lines += [_sentence(HEADLINES[target].format(**result)), ""]
        lines += [line for text in PARTS for line in _if_recorded(text, result)]
    days = "".join(f", {part} {day}" for part, day in recorded.get("parts", {}).items())
    lines += [
        f"{recorded['day']}{days}; {recorded['machine']}; {[*goals.values()].count(True)} of {len(goals)} goals met.",
        "",
    ]
    for verdict, label in VERDICTS.items():
        names = [name.replace("_", " ") for name, kept in goals.items() if kept == verdict]
        lines += [f"- {label}: {'; '.join(names)}."] if names else []
    return "\n".join([*lines, ""])


def _if_recorded(text: str, result: dict[str, Any]) -> list[str]:
    try:
        return [text.format(**result), ""]
    except KeyError:  # another bench, or a record from before this part
        return []


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    main()
