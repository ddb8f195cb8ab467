"""`python -m tests.check_style`: code is written plainly; part of `make check`.

Reads the syntax trees of all tracked Python files and lists what makes a file hard to read, with
file and line. `tests/style.toml` holds how many offenses of each kind a file may still have; what
is added must not raise a count. `--record` lowers the counts to those of today and never raises
one. The bounds in the same file hold the density of the whole product and of the tests.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "style.toml"

_OPENINGS = (
    "Of What Whether How Which As For From To By Until Where On In At After Before Also Not Only"
    " Why Who Whose With Without When Else While Over Since Below Above Beside Inside Around"
    " Through Within Because If Once"
)
FRAGMENT_OPENINGS = frozenset(_OPENINGS.split())
"""First words of a docstring that begins in the middle of a sentence."""

_PRONOUNS = (
    "found made mine there each one known wanted stated given ours theirs these those of at by"
    " what why who how asked lost gone kept held seen told chosen others most least again left own"
    " same more them whom where near began ended anew twice it such"
)
PRONOUNS = frozenset(_PRONOUNS.split())
"""Names of variables that do not say what they hold."""

PARTICIPLE = re.compile(
    r"_?(?!seed|feed|need|embed|shed|proceed|exceed)"
    r"([a-z]+ed|made|found|held|told|lost|known|seen|shown|kept|written|given|taken|chosen|drawn"
    r"|bought|sold|paid|left|met)(_\w+)?"
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LONGEST_TEST_NAME = 70
LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True)
class Offense:
    line: int
    kind: str
    text: str


@dataclass(slots=True)
class Size:
    """Counts from which the density of a set of files follows."""

    nodes: int = 0
    code_lines: int = 0
    characters: int = 0
    comprehensions: int = 0

    def add(self, other: "Size") -> None:
        self.nodes += other.nodes
        self.code_lines += other.code_lines
        self.characters += other.characters
        self.comprehensions += other.comprehensions

    def density(self) -> dict[str, float]:
        lines = self.code_lines or 1
        return {
            "nodes_per_code_line": self.nodes / lines,
            "characters_per_code_line": self.characters / lines,
            "comprehensions_per_1000_code_lines": 1000 * self.comprehensions / lines,
        }


def find_offenses(source: str) -> Iterator[Offense]:
    """Yields what a reader stumbles over in one file."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = set()
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                docstrings.add(node.body[0])
                if _opens_as_fragment(text):
                    line = node.body[0].lineno
                    yield Offense(line, "fragment", f"docstring begins {text.split()[0]!r}")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _judge_function_name(node)
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield Offense(node.lineno, "tuple", "several assignments in one statement")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield from _judge_variable(node.lineno, node.id)
        elif isinstance(node, ast.arg):
            yield from _judge_variable(node.lineno, node.arg)
    for node in nodes:
        if _is_text(node) and node not in docstrings and _opens_as_fragment(node.value.value):
            yield Offense(node.lineno, "note", f"note begins {node.value.value.split()[0]!r}")
    # Tokens take longer than everything else.
    if "fmt:" in source:
        yield from _find_switched_off(source)


def _find_switched_off(source: str) -> Iterator[Offense]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and re.match(r"#\s*fmt:\s*(skip|off)", token.string):
            yield Offense(token.start[0], "fmt", "the formatter is switched off")


def _judge_function_name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Offense]:
    name = node.name
    if re.search(r"_of(_|$)", name):
        yield Offense(node.lineno, "x_of", f"function {name} is not a verb")
    if name.startswith("test_"):
        if len(name) > LONGEST_TEST_NAME:
            yield Offense(node.lineno, "test_name", f"{name} has {len(name)} characters")
    elif PARTICIPLE.fullmatch(name):
        yield Offense(node.lineno, "participle", f"function {name} is not a verb")


def _judge_variable(line: int, name: str) -> Iterator[Offense]:
    if name.lstrip("_") in PRONOUNS:
        yield Offense(line, "name", f"variable {name} does not say what it holds")


def measure(source: str) -> Size:
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    lines_of_text = set()
    for node in nodes:
        if _is_text(node):
            lines_of_text.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines_of_code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT_TOKENS:
            lines_of_code.update(range(token.start[0], token.end[0] + 1))
    code = lines_of_code - lines_of_text
    lines = source.splitlines()
    return Size(
        nodes=len(nodes),
        code_lines=len(code),
        characters=sum(len(lines[number - 1].strip()) for number in code),
        comprehensions=sum(isinstance(node, COMPREHENSIONS) for node in nodes),
    )


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _opens_as_fragment(text: str) -> bool:
    first_word = re.split(r"[\s:,.`]", text.strip(), maxsplit=1)[0]
    return first_word in FRAGMENT_OPENINGS


def list_python_files() -> list[str]:
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    names: list[str] = []
    for name in listing.stdout.splitlines():
        if (ROOT / name).is_file():
            names.append(name)
    return names


def is_test(name: str) -> bool:
    return name.startswith("tests/") or "/tests/" in name


def check(sources: dict[str, str], table: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Returns a line for each offense above what `table` allows, and for each bound passed.

    Args:
        sources: text by file name.
        table: `allowed`, counts by file and kind, and `bounds`, densities of product and tests.
    """
    problems = []
    sizes = {"product": Size(), "tests": Size()}
    for name, source in sources.items():
        sizes["tests" if is_test(name) else "product"].add(measure(source))
        allowed = table["allowed"].get(name, {})
        offenses = list(find_offenses(source))
        counts = Counter(offense.kind for offense in offenses)
        for offense in sorted(offenses, key=lambda offense: offense.line):
            if counts[offense.kind] > allowed.get(offense.kind, 0):
                limit = allowed.get(offense.kind, 0)
                problems.append(
                    f"{name}:{offense.line}: {offense.text}"
                    f" [{offense.kind}: {counts[offense.kind]} in the file, {limit:g} allowed]"
                )
    for half, size in sizes.items():
        for figure, value in size.density().items():
            bound = table["bounds"][half][figure]
            if value > bound:
                problems.append(f"{half}: {figure} {value:.2f}, at most {bound:g} allowed")
    return problems


def record(sources: dict[str, str], table: dict[str, dict[str, dict[str, float]]]) -> str:
    """Returns the table with today's counts, none of them higher than before."""
    lines = [
        "# What `python -m tests.check_style` allows; `--record` lowers the counts.",
        "",
    ]
    for half, bounds in table["bounds"].items():
        lines.append(f"[bounds.{half}]")
        for figure, bound in bounds.items():
            lines.append(f"{figure} = {bound:g}")
        lines.append("")
    lines.append("[allowed]")
    for name in sorted(sources):
        counts = Counter(offense.kind for offense in find_offenses(sources[name]))
        before = table["allowed"].get(name)
        parts = []
        for kind, count in sorted(counts.items()):
            allowed = count if before is None else min(count, int(before.get(kind, 0)))
            if allowed:
                parts.append(f"{kind} = {allowed}")
        if parts:
            lines.append(f'"{name}" = {{ {", ".join(parts)} }}')
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="lower the counts to today's")
    options = parser.parse_args()
    table = tomllib.loads(TABLE.read_text())
    sources = {name: (ROOT / name).read_text() for name in list_python_files()}
    if options.record:
        TABLE.write_text(record(sources, table))
        return
    problems = check(sources, table)
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
