"""`python -m tests.decision_index`: write infra/decisions/README.md from the decisions."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "infra" / "decisions"
INTRODUCTION = """# Decisions

Surprising choices in the code and their reasons. A decision is at most 60 lines and starts like this:

    # 0043 The predictor is a separate process

    2026-11-21. Status: accepted.

    ## Context

then `## Decision` and `## Consequences`. Code cites it as `infra/decisions/0043`. A decision that no
longer applies is deleted, or says `Status: replaced.` and by which. `python -m tests.decision_index` writes this file.
"""
# room -> numbers, first and last
ROOMS: dict[str, tuple[tuple[int, int], ...]] = {
    "Platform: `infra/` without placement": ((9, 19),),
    "Checkpoints: `workloads/library/holdfast/checkpoint/`": ((20, 29),),
    "Training and its stop: `holdfast/training/`, `holdfast/runtime/`": ((30, 39), (85, 89), (95, 95)),
    "Batch inference: `holdfast/inference/`": ((40, 49),),
    "Placement: `workloads/library/holdfast/place/`": ((50, 59),),
    "Manifests and linter: `workloads/manifests/`": ((60, 69), (80, 80)),
    "Monitoring: `monitoring/`": ((70, 79), (105, 109)),
    "Jobs and drills: `workloads/library/holdfast/jobs/`, `workloads/library/holdfast/drill/`": ((90, 90), (100, 104)),
    "Tests and delivery": ((81, 84), (91, 94), (96, 99), (110, 199)),
}


def title(path: Path) -> str:
    return re.sub(r"^# \d+:? ", "", path.read_text().splitlines()[0])


def index() -> str:
    blocks = [INTRODUCTION]
    for room, spans in ROOMS.items():
        found = [p for p in sorted(FOLDER.glob("[0-9]*.md")) if any(a <= int(p.name[:4]) <= b for a, b in spans)]
        numbers = ", ".join(f"{a:04} to {b:04}" if a != b else f"{a:04}" for a, b in spans)
        lines = "\n".join(f"- [{p.name[:4]}]({p.name}) {title(p)}" for p in found)
        blocks.append(f"## {room}\n\nNumbers {numbers}.\n\n{lines}".rstrip() + "\n")
    return "\n".join(blocks)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(index())
