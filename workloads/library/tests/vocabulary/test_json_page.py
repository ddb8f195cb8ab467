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
        if "/tests/" not in name and "/examples/" not in name and (ROOT / name).is_file():
            sources.append(ROOT / name)
    return sources


def read_constants(tree: ast.Module) -> dict[str, str]:
    """Returns the module's texts by name."""
    constants: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                constants[target.id] = node.value.value
    return constants


def list_class_fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


class Outputs(ast.NodeVisitor):
    """Collects schema -> fields of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.constants = read_constants(tree)
        self.classes: list[ast.ClassDef] = []
        self.fields: dict[str, set[str]] = defaultdict(set)
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node)
        self.generic_visit(node)
        self.classes.pop()

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "print_json" and node.args:
            assert isinstance(node.args[0], ast.Constant)
            names = {keyword.arg or OTHERS for keyword in node.keywords}
            self.fields[f"holdfast.{node.args[0].value}/1"] |= names
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # {"schema": SCHEMA} | asdict(self)
        if self.classes and isinstance(node.left, ast.Dict) and isinstance(node.right, ast.Call):
            schema = self.find_schema(node.left)
            if schema:
                self.fields[schema] |= set(list_class_fields(self.classes[-1]))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        schema = self.find_schema(node)
        for key in node.keys if schema else ():
            name = key.value if isinstance(key, ast.Constant) else OTHERS
            self.fields[schema].add(str(name))
        self.generic_visit(node)

    def find_schema(self, node: ast.Dict) -> str:
        """Returns the schema that a dict names, or an empty text."""
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or key.value != "schema":
                continue
            text: Any = value.value if isinstance(value, ast.Constant) else None
            if isinstance(value, ast.Name):
                text = self.constants.get(value.id)
            if isinstance(text, str):
                return text
        return ""


def collect_outputs() -> dict[str, set[str]]:
    fields: dict[str, set[str]] = defaultdict(set)
    for source in list_sources():
        text = source.read_text()
        if "schema" in text or "print_json" in text:
            for schema, names in Outputs(ast.parse(text)).fields.items():
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
    shown = {command for command, _, _ in read_rows("Commands of holdfast")}
    assert shown == commands
    assert len(commands) > 12


def test_rows_have_the_fields_of_the_source() -> None:
    outputs = collect_outputs()
    rows = [*read_rows("Commands of holdfast"), *read_rows("Commands of the platform")]
    assert len(rows) > 25
    for command, schema, shown in rows:
        fields = outputs[schema] - {OTHERS}
        named = {name for name in shown if re.fullmatch(r"[a-z_]+", name)}
        assert named == fields, f"{command}: {schema}"


def test_every_schema_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [schema for schema in collect_outputs() if f"`{schema}`" not in page]
    assert missing == []
