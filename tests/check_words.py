"""`python -m tests.check_words`: plain words in the text that users see; part of `make check`.

Covers Markdown pages, `## ...` comments of the Makefile, docstrings of commands and rules,
field docs of infra/environments, and the arguments of options, alerts, charts, rules and errors. Not covered: the pages
and messages of holdfast/jobs, and all other comments and docstrings.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALLS = {"Alert", "Argument", "Chart", "InputError", "Option", "Refused", "Typer", "Unjudged"} | {
    "DrillError",
    "Finding",
    "Form",
    "GcloudFailed",
    "_at",
    "finding",
    "matches",
    "rule",
}
COMMANDS = {"callback", "command", "rule"}
PROMQL = {"query", "queries"}
BAD = re.compile(
    r"\b(whoever|nobody\s[^.;|]{0,30}\bbut|dearer|anew|foretells?|foretold|(?:is|are|was|were|be|as)\stold|one's\sown"
    r"|oneself|mend(?:s|ed|ing)?|bears?|bore|stands?|stood|beside|so\smany|of\sours|taken\saway)\b",
    re.IGNORECASE,
)
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|\bstands?\sfor\b|\bstand-in\b", re.IGNORECASE)


def check(root: Path = ROOT) -> list[str]:
    """`file:line: word` of each bad word in the tracked files."""
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.splitlines() if (root / name).is_file()]
    texts = [(name, *each) for name in names for each in _texts(name, root / name)]
    return [f"{name}:{found}" for name, first, text in texts for found in _bad(first, text)]


def _bad(first: int, text: str) -> Iterator[str]:
    prose = NO_PROSE.sub(lambda found: "_" * len(found[0]), text)
    yield from (f"{first + prose.count(chr(10), 0, each.start())}: {each[0]}" for each in BAD.finditer(prose))


def _texts(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of all that a user sees."""
    if name.endswith(".md"):
        text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.DOTALL)
        yield 1, text
    elif name == "Makefile":
        yield from ((at, line.partition("## ")[2]) for at, line in enumerate(path.read_text().splitlines(), 1))
    elif name.endswith(".py") and "tests" not in Path(name).parts:
        for node in ast.walk(ast.parse(path.read_text())):
            yield from _of_node(node, field_docs=name.startswith("infra/environments/"))


def _of_node(node: ast.AST, *, field_docs: bool) -> Iterator[tuple[int, str]]:
    parts: list[ast.AST] = []
    if isinstance(node, ast.Call) and _name(node) in CALLS:
        parts = [*node.args, *(each.value for each in node.keywords if each.arg not in PROMQL)]
    elif isinstance(node, ast.FunctionDef) and COMMANDS & set(map(_name, node.decorator_list)):
        parts = [node.body[0]]
    elif isinstance(node, ast.Expr) and field_docs:
        parts = [node]
    constants = (each for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant))
    yield from ((each.lineno, each.value) for each in constants if isinstance(each.value, str))


def _name(call: ast.expr) -> str:
    function = call.func if isinstance(call, ast.Call) else call
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


if __name__ == "__main__":
    sys.exit("\n".join(check()) or 0)
