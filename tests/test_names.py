"""Identifiers use the field's terms: what a program writes or returns is not told, said or asked to speak."""

import io
import re
import subprocess
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNCLEAR = {"told", "tell", "tells", "telling", "said", "say", "says", "saying", "untold", "unsaid"}
CANDIDATE = re.compile("told|tell|said|say", re.IGNORECASE)

# The protocol of Python's file objects, which libraries call.
FIXED = {"tell"}


def parts(identifier: str) -> set[str]:
    """`JobTold`, `job_told` and `_told` have the part `told`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier)
    return {part.lower() for part in spaced.split("_")}


def unclear(source: str) -> list[tuple[int, str]]:
    # Most files have no such text at all, and to take one apart costs a hundred times as much as to search it.
    if not CANDIDATE.search(source):
        return []
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(t.start[0], t.string) for t in tokens if t.type == tokenize.NAME and parts(t.string) & UNCLEAR]


def test_an_unclear_identifier_is_found_in_any_spelling() -> None:
    assert unclear("JobTold = told_at = _said = 1  # told\n'told'\nretold = essay = 2\n") == [
        (1, "JobTold"),
        (1, "told_at"),
        (1, "_said"),
    ]


def sources() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name: (ROOT / name).read_text() for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def test_no_identifier_tells_or_says() -> None:
    # Names of tests are sentences; what they hold is not an identifier that anybody reads twice.
    found = [
        f"{name}:{line}: {identifier}"
        for name, source in sources().items()
        for line, identifier in unclear(source)
        if not identifier.startswith("test_") and identifier not in FIXED
    ]
    assert not found, "\n".join(found)


def test_no_module_says_who_calls_it() -> None:
    """Callers change, and nobody corrects such a sentence; an editor finds them."""
    named = re.compile(r"\b(called|used) by\b", re.IGNORECASE)
    # The first text of a file; parsing them all would take seconds.
    found = [name for name, source in sources().items() if named.search("".join(source.split('"""', 2)[1:2]))]
    assert not found, "\n".join(found)
