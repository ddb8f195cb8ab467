"""`python -m tests.check_words`: plain words in what users and maintainers read; part of `make
check`.

Covers Markdown pages, `## ...` comments of the Makefile, comments and docstrings of product Python,
the arguments of options, alerts, charts, rules and errors, and the product's TOML.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALLS = {
    *("Alert", "Argument", "Chart", "InputError", "Option", "Refused", "Typer", "Unjudged"),
    *(
        "DrillError",
        "Finding",
        "Form",
        "GcloudFailed",
        "finding",
        "matches",
        "of_environment",
        "rule",
    ),
}
PROMQL = {"query", "queries"}
BAD = re.compile(
    r"\b(whoever|nobody|dearer|anew|foretells?|foretold|told|one's\sown"
    r"|oneself|mend(?:s|ed|ing)?|bears?|bore|stands?|stood|beside|so\smany|of\sours|taken\saway)\b",
    re.IGNORECASE,
)
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|\bstands?\sfor\b|\bstand-in\b", re.IGNORECASE)


def check(root: Path = ROOT) -> list[str]:
    """`file:line: word` of each bad word in the tracked files."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [name for name in listed.splitlines() if (root / name).is_file()]
    texts = [(name, *each) for name in names for each in _texts(name, root / name)]
    return [f"{name}:{found}" for name, first, text in texts for found in _bad(first, text)]


def _bad(first: int, text: str) -> Iterator[str]:
    prose = NO_PROSE.sub(lambda found: "_" * len(found[0]), text)
    yield from (
        f"{first + prose.count(chr(10), 0, each.start())}: {each[0]}"
        for each in BAD.finditer(prose)
    )


def _texts(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of all that is checked."""
    if name.endswith(".md"):
        text = re.sub(
            r"```.*?```",
            lambda block: "\n" * block[0].count("\n"),
            path.read_text(),
            flags=re.DOTALL,
        )
        yield 1, text
    elif name.endswith(".toml") and "tests" not in Path(name).parts:
        yield 1, path.read_text()
    elif name == "Makefile":
        yield from (
            (at, line.partition("## ")[2])
            for at, line in enumerate(path.read_text().splitlines(), 1)
        )
    elif name.endswith(".py") and "tests" not in Path(name).parts:
        source = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(source)):
            yield from _of_node(node)


def _of_node(node: ast.AST) -> Iterator[tuple[int, str]]:
    parts: list[ast.AST] = []
    if isinstance(node, ast.Call) and _name(node) in CALLS:
        parts = [*node.args, *(each.value for each in node.keywords if each.arg not in PROMQL)]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        parts = [node]
    constants = (
        each for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant)
    )
    yield from ((each.lineno, each.value) for each in constants if isinstance(each.value, str))


def _name(call: ast.expr) -> str:
    function = call.func if isinstance(call, ast.Call) else call
    if isinstance(function, ast.Attribute):
        return function.attr
    return getattr(function, "id", "")


if __name__ == "__main__":
    sys.exit("\n".join(check()) or 0)
