"""`python -m tests.check_words` finds unusual words in texts that users and maintainers read. It is
part of `make check`.

Covers Markdown pages, `## ...` comments of the Makefile, comments and docstrings of Python, tests
included, the arguments of options, alerts, charts, rules, causes, errors, log lines and what is
printed, and the product's TOML.
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
    "Alert",
    "Argument",
    "Cause",
    "Chart",
    "DrillError",
    "Finding",
    "Form",
    "GcloudFailed",
    "InputError",
    "Option",
    "Refused",
    "Typer",
    "Unjudged",
    "echo",
    "environment_finding",
    "finding",
    "matches",
    "note",
    "print",
    "rule",
}
LOGS = {"logs", "logger", "logging"}
"""Objects whose every method writes a line that users read."""
PROMQL = {"query", "queries"}
BAD = re.compile(
    r"\b(whoever|nobody|dearer|anew|foretells?|foretold|told|one's\sown"
    r"|oneself|mend(?:s|ed|ing)?|bears?|bore|stands?|stood|beside|so\smany|of\sours|taken\saway)\b",
    re.IGNORECASE,
)
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|\bstands?\sfor\b|\bstand-in\b", re.IGNORECASE)


def check(root: Path = ROOT) -> list[str]:
    """Return `file:line: word` of each bad word in the tracked files."""
    process = subprocess.run(
        ["git", "-C", root, "ls-files"],
        capture_output=True,
        text=True,
        check=True,
    )
    findings = []
    for name in process.stdout.splitlines():
        if (root / name).is_file():
            for first_line, text in _iter_texts(name, root / name):
                for finding in _find_words(first_line, text):
                    findings.append(f"{name}:{finding}")
    return findings


def _find_words(first_line: int, text: str) -> Iterator[str]:
    prose = NO_PROSE.sub(lambda match: "_" * len(match[0]), text)
    for match in BAD.finditer(prose):
        line = first_line + prose.count("\n", 0, match.start())
        yield f"{line}: {match[0]}"


def _iter_texts(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield first line and text of all that is checked in a file."""
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
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield number, line.partition("## ")[2]
    elif name.endswith(".py"):
        source = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(source)):
            yield from _iter_constants(node)


def _iter_constants(node: ast.AST) -> Iterator[tuple[int, str]]:
    parts: list[ast.AST] = []
    if isinstance(node, ast.Call) and (_name(node) in CALLS or _is_log_line(node)):
        parts += node.args
        for keyword in node.keywords:
            if keyword.arg not in PROMQL:
                parts.append(keyword.value)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        parts = [node]
    for part in parts:
        for descendant in ast.walk(part):
            if isinstance(descendant, ast.Constant) and isinstance(descendant.value, str):
                yield descendant.lineno, descendant.value


def _is_log_line(call: ast.Call) -> bool:
    function = call.func
    return isinstance(function, ast.Attribute) and _name(function.value) in LOGS


def _name(call: ast.expr) -> str:
    function = call.func if isinstance(call, ast.Call) else call
    if isinstance(function, ast.Attribute):
        return function.attr
    return getattr(function, "id", "")


if __name__ == "__main__":
    sys.exit("\n".join(check()) or 0)
