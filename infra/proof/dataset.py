"""What the samples of a proof work on: a fresh project has an empty bucket."""

import json
from pathlib import Path

FILE = "items.jsonl"
ITEMS = 100_000
"""One by one they outlast the loss of a machine; how long they take on Google was never measured."""


def write(folder: Path) -> Path:
    """Rows of the batch, which the trainer reads as text; the same in every run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with path.open("w") as file:
        for number in range(ITEMS):
            file.write(json.dumps({"id": str(number), "text": f"the square of {number} is {number * number}"}) + "\n")
    return path
