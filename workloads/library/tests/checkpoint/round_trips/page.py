"""The page of round trips beside the library."""

from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[5] / "workloads" / "library" / "ROUND_TRIPS.md"
_HEAD = """# What comes back from a checkpoint

Written by `python -m workloads.library.tests.checkpoint.round_trips`, which saves each of these, restores it into a
fresh one and compares every bit. `exact`: the restored bits are the saved ones, and training on gives what it gives
without a restart. `refused`: the start of the run ends with this error, before any training. There is no third outcome
that trains on.
"""
_NOTES = {
    "Layouts over ranks": "Each is saved on 4 ranks, restored and saved on 2, on 1, and on 4 again, with AdamW.",
    "Optimizers": "Of `torch.optim`, each with a model of its own.",
    "Data types": "Filled with random bytes, so with every kind of NaN.",
}


def render(found: Mapping[str, Mapping[str, str]]) -> str:
    parts = [_HEAD]
    for title, rows in found.items():
        note = f"{_NOTES[title]}\n\n" if title in _NOTES else ""
        table = "\n".join(f"| {name} | {outcome} |" for name, outcome in rows.items())
        parts.append(f"## {title}\n\n{note}| what | outcome |\n|---|---|\n{table}\n")
    return "\n".join(parts)


def rows_of(page: str) -> dict[str, str]:
    """Name -> outcome of every row of a page."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cell[0]: cell[1] for cell in cells if cell[0] != "what"}
