"""`python -m tests.decision_index` writes the lists of infra/decisions/README.md from the
decisions.
"""

import re
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "infra" / "decisions"
TOPS = ("Platform", "Library", "Tests")


def title(path: Path) -> str:
    return re.sub(r"^# \d+:? ", "", path.read_text().splitlines()[0])


def room(path: Path) -> str:
    status = re.search(r" Status: .* Room: (\S+)\.$", path.read_text(), re.MULTILINE)
    return status[1] if status else ""


def top(folder: str) -> str:
    if folder.startswith("workloads/library/holdfast/"):
        return "Library"
    return "Tests" if "tests" in folder.split("/") else "Platform"


def index() -> str:
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        lines[room(path)].append(f"- [{path.name[:4]}]({path.name}) {title(path)}\n")
    introduction = (FOLDER / "README.md").read_text().partition(f"## {TOPS[0]}\n")[0]
    blocks = [introduction.rstrip() + "\n"]
    for name in TOPS:
        blocks.append(f"## {name}\n")
        for folder in sorted(lines):
            if top(folder) == name:
                blocks.append(f"### `{folder}/`\n\n{''.join(lines[folder])}")
    return "\n".join(blocks)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(index())
