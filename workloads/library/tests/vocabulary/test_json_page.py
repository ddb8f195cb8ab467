"""The page of JSON outputs has the schema and fields of each command that prints JSON."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from holdfast.commands import app

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "workloads/library/docs/reference/json-outputs.md"
OTHERS = "*"
"""Stands for the fields that a source does not name one by one."""
_LEFT_OUT = re.compile(r"/(tests|examples)/")
_CONSTANT = re.compile(r'^([A-Z_]+) = "([^"]+)"$', re.MULTILINE)


def list_sources() -> list[Path]:
    process = subprocess.run(
        ["git", "ls-files", "--", "workloads/*.py", "infra/*.py", "monitoring/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    sources = []
    for name in process.stdout.splitlines():
        source = ROOT / name
        if _LEFT_OUT.search(name) or not source.is_file():
            continue
        sources.append(source)
    return sources


def list_class_fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            yield ast.unparse(statement.target)


class Outputs(ast.NodeVisitor):
    """Collects schema -> fields of one module."""

    def __init__(self, source: str) -> None:
        self.constants = dict(_CONSTANT.findall(source))
        self.classes: list[ast.ClassDef] = []
        self.fields: dict[str, set[str]] = defaultdict(set)
        self.visit(ast.parse(source))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node)
        self.generic_visit(node)
        self.classes.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if ast.unparse(node.func) != "print_json":
            return
        thing = ast.literal_eval(node.args[0])
        schema = f"holdfast.{thing}/1"
        for keyword in node.keywords:
            self.fields[schema].add(keyword.arg or OTHERS)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if ast.unparse(node.right) != "asdict(self)":
            return
        assert isinstance(node.left, ast.Dict)
        schema = self.find_schema(node.left)
        if schema:
            self.fields[schema].update(list_class_fields(self.classes[-1]))

    def visit_Dict(self, node: ast.Dict) -> None:
        self.generic_visit(node)
        schema = self.find_schema(node)
        if not schema:
            return
        for key in node.keys:
            if isinstance(key, ast.Constant):
                self.fields[schema].add(str(key.value))
            else:
                self.fields[schema].add(OTHERS)

    def find_schema(self, node: ast.Dict) -> str:
        """Returns the schema that a dict names, or an empty text."""
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None or ast.unparse(key) != "'schema'":
                continue
            if isinstance(value, ast.Constant):
                return str(value.value)
            return self.constants.get(ast.unparse(value), "")
        return ""


def collect_outputs() -> dict[str, set[str]]:
    fields: dict[str, set[str]] = defaultdict(set)
    for source in list_sources():
        text = source.read_text()
        if "schema" in text or "print_json" in text:
            for schema, names in Outputs(text).fields.items():
                fields[schema] |= names - {"schema"}
    return fields


def read_rows(heading: str) -> list[tuple[str, str, set[str]]]:
    """Returns command, schema and fields of each row under a heading."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = []
    for command, schema, fields in re.findall(
        r"^\| `([^`]+)` \| `([^`]+)` \| (.*) \|$", section, re.MULTILINE
    ):
        rows.append((command, schema, set(re.findall(r"`([^`]+)`", fields))))
    return rows


def list_commands(command: Any, path: str) -> Iterator[str]:
    """Yields the commands with --json."""
    for parameter in command.params:
        if "--json" in parameter.opts:
            yield path
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from list_commands(subcommand, f"{path} {name}")


def test_every_json_command_has_a_row() -> None:
    commands = set(list_commands(get_command(app), "holdfast"))
    shown = set()
    for command, _, _ in read_rows("Commands of holdfast"):
        shown.add(command)
    assert shown == commands
    assert len(commands) > 12


def test_rows_have_the_fields_that_sources_print() -> None:
    outputs = collect_outputs()
    rows = [*read_rows("Commands of holdfast"), *read_rows("Commands of the platform")]
    assert len(rows) > 25
    for command, schema, shown in rows:
        fields = outputs[schema] - {OTHERS}
        named = set()
        for name in shown:
            if re.fullmatch(r"[a-z_]+", name):
                named.add(name)
        assert named == fields, f"{command}: {schema}"


def test_every_schema_is_on_the_page() -> None:
    page = PAGE.read_text()
    for schema in collect_outputs():
        assert f"`{schema}`" in page
