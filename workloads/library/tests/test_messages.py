"""Messages of the installed library speak to people who have no clone of the platform."""

import ast
import re
from pathlib import Path

import pytest

from tests.support import ROOT

LIBRARY = ROOT / "workloads/library/holdfast"
ROOMS = sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))
OF_A_CLONE = re.compile(
    r"\bmake [a-z]+(-[a-z]+)*( ENV=|`)|\bmake (apply|deploy|demo|outputs|operators|images)\b"
    r"|python -m (infra|workloads|monitoring)|infra/(decisions|environments|rules)"
    r"|workloads/library|tests/cluster"
)


def list_texts(path: Path) -> list[str]:
    """Return the texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs.add(id(node.value))
    texts: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            texts.append(node.value)
    return texts


@pytest.mark.parametrize("room", ROOMS)
def test_no_message_sends_to_a_clone(room: str) -> None:
    texts = []
    for path in sorted((LIBRARY / room).rglob("*.py")):
        for text in list_texts(path):
            if OF_A_CLONE.search(text):
                texts.append((path.relative_to(LIBRARY).as_posix(), text))
    assert texts == []
