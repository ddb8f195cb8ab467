"""A `gcloud` on PATH that answers from a table, and refuses everything that is not read-only."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.support import program

SCRIPT = """#!{python} -IS
import json, sys
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(words) + "\\n")
plain = [w for w in words if not w.startswith("--")]
for key, answer in json.load(open({answers!r})):
    if key == plain[: len(key)]:
        if isinstance(answer, dict) and "refused" in answer:
            sys.exit(answer["refused"])
        if isinstance(answer, str):
            print(answer)
        else:
            print(json.dumps(answer))
        sys.exit(0)
print("ERROR: (gcloud) permission denied on " + " ".join(plain), file=sys.stderr)
sys.exit(1)
"""


class Gcloud:
    """Answers by the leading words, as `("projects", "describe")`."""

    def __init__(self, folder: Path) -> None:
        self._answers = folder / "answers.json"
        self._calls = folder / "calls.jsonl"
        self._table: list[tuple[list[str], Any]] = []
        self._answers.write_text("[]")
        files = {
            "calls": str(self._calls),
            "answers": str(self._answers),
        }
        program(folder / "gcloud", SCRIPT.format(python=sys.executable, **files))

    def answer(self, words: str, value: Any) -> None:
        self._table.insert(0, (words.split(), value))
        self._answers.write_text(json.dumps(self._table))

    def refuse(self, words: str, text: str) -> None:
        self.answer(words, {"refused": text})

    def calls(self) -> list[list[str]]:
        if self._calls.exists():
            return [json.loads(line) for line in self._calls.read_text().splitlines()]
        return []
