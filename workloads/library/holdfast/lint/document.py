"""YAML text to plain values that know their line and column.

Each document of a file is read alone: a broken one becomes a `Trouble`, and the others are still
judged. Tags never build Python objects, and aliases are expanded up to a limit.
"""

# Why it is so: infra/decisions/0060.

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from yaml.error import MarkedYAMLError, YAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.lint.composer import compose
from holdfast.support.errors import HoldfastError

MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 50_000  # of a document, after aliases are expanded; it stops a bomb of nested aliases
# Of a whole file: each document may repeat a small bomb, and one long text may be an alias
# everywhere.
MAX_FILE_VALUES = 200_000
MAX_FILE_CHARACTERS = 4 << 20
MAX_DUPLICATES = 20  # of one document
MAX_NUMBER = 40  # characters; Python reads longer numbers and then refuses to print them

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of a key or value; lines and columns count from 1, `end` is exclusive and on the
    same line.
    """

    line: int
    column: int
    end: int


def load_text(path: FilePath) -> str:
    """The text of a regular file, at most one byte more than is judged. Raises OSError, also for
    pipes and devices.
    """
    # Without O_NONBLOCK a pipe would block. The open file is checked, so that no other can replace
    # it meanwhile.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "no regular file")
        return file.read(4 * MAX_FILE_BYTES + 1).decode()


class Map(dict[str, Any]):
    """A mapping with the place of each key and value."""

    __slots__ = ("keys_at", "values_at")

    def __init__(self) -> None:
        super().__init__()
        self.keys_at: dict[str, Mark] = {}
        self.values_at: dict[str, Mark] = {}


class Seq(list[Any]):
    """A sequence with the place of each item."""

    __slots__ = ("items_at",)

    def __init__(self) -> None:
        super().__init__()
        self.items_at: list[Mark] = []


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a document was not judged. `kind`: broken, template, huge, duplicate."""

    kind: str
    message: str
    mark: Mark


@dataclass(slots=True)
class Document:
    """One YAML document: `value` is a Map, or whatever else the text holds."""

    value: Any
    first_line: int
    troubles: list[Trouble] = field(default_factory=list[Trouble])

    def at(self, path: Path, *, of_key: bool = False) -> Mark:
        """The place of `path`: of a scalar itself, else or `of_key` its key; of the nearest
        ancestor if it is missing.
        """
        here = self.value
        mark = Mark(self.first_line, 1, 2)
        for step in path:
            found = _child(here, step, of_key=of_key)
            if found is None:
                break
            here, mark = found
        return mark


def _child(parent: Any, step: str | int, *, of_key: bool) -> tuple[Any, Mark] | None:
    if isinstance(parent, Map) and isinstance(step, str) and step in parent:
        value = parent[step]
        scalar = not of_key and not isinstance(value, (Map, Seq)) and value is not None
        return value, (parent.values_at if scalar else parent.keys_at)[step]
    if isinstance(parent, Seq) and isinstance(step, int) and step < len(parent):
        return parent[step], parent.items_at[step]
    return None


_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)
# Before a document it is for the reader, and is no document itself.
_DIRECTIVE = re.compile(r"^%(?:YAML|TAG)\b.*$", re.MULTILINE)
# Helm and Go, Jinja, ERB, Terraform
_TEMPLATES = (("{{", "}}"), ("{%", "%}"), ("<%", "%>"), ("%{", "}"))
_CRD = re.compile(r"^kind:\s*[\"']?CustomResourceDefinition\b", re.MULTILINE)


def unread(kind: str, message: str) -> Document:
    return Document(None, 1, [Trouble(kind, message, Mark(1, 1, 2))])


def read(text: str) -> Iterator[Document]:
    """The documents of one file, in order; empty ones are left out."""
    if len(text) > MAX_FILE_BYTES:
        message = f"{len(text):,} characters, more than {MAX_FILE_BYTES:,}: not read"
        yield unread("huge", message)
        return
    reader = _Reader()
    for chunk, first_line in _chunks(text.removeprefix("\ufeff")):
        document = reader.read(_DIRECTIVE.sub("", chunk), first_line)
        if document.value is not None or document.troubles:
            yield document


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """Text of each document with the number of its first line. `---` at column 1 is always a
    separator in YAML.
    """
    start = line = 0
    for match in _START.finditer(text):
        yield text[start : match.start()], line + 1
        line += text.count("\n", start, match.end())
        start = match.end()
    yield text[start:], line + 1


def _template_or_broken(chunk: str, message: str, mark: Mark) -> Trouble:
    if any(0 <= chunk.find(opened) < chunk.rfind(closed) for opened, closed in _TEMPLATES):
        return Trouble("template", "a Helm or other text template, not YAML: not judged", mark)
    return Trouble("broken", message, mark)


class _NotPlainError(HoldfastError, ValueError):
    def __init__(self, message: str, node: Node) -> None:
        super().__init__(message)
        self.node = node


class _Reader:
    """Texts of the documents of one file to values. Counts what it builds, so that aliases cannot
    explode.
    """

    def __init__(self) -> None:
        # that are left to the whole file
        self.values = MAX_FILE_VALUES
        self.characters = MAX_FILE_CHARACTERS

    def read(self, chunk: str, first_line: int) -> Document:
        document = Document(None, first_line)
        if _CRD.search(chunk):  # definitions are large and no rule reads them
            document.value = Map()
            return document
        self.document = document
        self.count = 0
        begin = Mark(first_line, 1, 2)
        try:
            node = compose(chunk)
            document.value = self.build(node) if node is not None else None
        except _NotPlainError as error:
            document.troubles.append(_template_or_broken(chunk, str(error), self._mark(error.node)))
        except MarkedYAMLError as error:
            place = error.problem_mark or error.context_mark
            if place:
                mark = Mark(first_line + place.line, place.column + 1, place.column + 2)
            else:
                mark = begin
            message = ", ".join(filter(None, (error.context, error.problem))) or "not YAML"
            document.troubles.append(_template_or_broken(chunk, message, mark))
        except RecursionError:
            document.troubles.append(Trouble("broken", "an alias inside its own anchor", begin))
        except (YAMLError, ValueError) as error:
            # PyYAML raises these on hostile text.
            message = str(error).partition("\n")[0] or type(error).__name__
            document.troubles.append(_template_or_broken(chunk, message, begin))
        return document

    def _mark(self, node: Node) -> Mark:
        begin = node.start_mark
        end = node.end_mark
        column = node.start_mark.column + 1
        same_line = begin.line == end.line and end.column >= column
        return Mark(
            self.document.first_line + begin.line,
            column,
            end.column + 1 if same_line else column + 1,
        )

    def _spend(self, node: Node, values: int = 1) -> None:
        self.count += values
        self.values -= values
        self.characters -= len(node.value) if isinstance(node, ScalarNode) else 0
        if self.count > MAX_VALUES or self.values < 0 or self.characters < 0:
            raise _NotPlainError(
                f"more than {MAX_VALUES:,} values after aliases are expanded", node
            )

    def build(self, node: Node) -> Any:
        self._spend(node)
        if isinstance(node, MappingNode):
            return self._map(node)
        return self._seq(node) if isinstance(node, SequenceNode) else _scalar(node)

    def _map(self, node: Node) -> Map:
        result = Map()
        for key_node, value_node in self._merged(node):
            key = self._key(key_node)
            mark = self._mark(key_node)
            if key in result and len(self.document.troubles) < MAX_DUPLICATES:
                self.document.troubles.append(
                    Trouble("duplicate", f"key {key!r} is here a second time", mark)
                )
            result[key] = self.build(value_node)
            result.keys_at[key], result.values_at[key] = mark, self._mark(value_node)
        return result

    def _merged(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Pairs of a mapping, `<<` resolved: own keys win over merged ones."""
        own = [(k, v) for k, v in node.value if k.tag != _MERGE]
        seen = {str(k.value) for k, _ in own}
        for source in _merge_sources(node):
            self._spend(source, len(source.value))
            for key, value in source.value:
                if str(key.value) not in seen:
                    seen.add(str(key.value))
                    yield key, value
        yield from own

    def _key(self, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            raise _NotPlainError("a mapping or list as key", node)
        self._spend(node, 0)
        return str(node.value)

    def _seq(self, node: Node) -> Seq:
        result = Seq()
        for item in node.value:
            result.append(self.build(item))
            result.items_at.append(self._mark(item))
        return result


_MERGE = "tag:yaml.org,2002:merge"


def _merge_sources(node: Node) -> Iterator[Node]:
    for key, value in node.value:
        if key.tag == _MERGE:
            listed = value.value if isinstance(value, SequenceNode) else [value]
            yield from (
                source
                for source in listed
                if isinstance(source, MappingNode) and source is not node
            )


def _integer(text: str) -> int:
    """0644 is octal in YAML 1.1."""
    octal = text.lstrip("+-").startswith("0") and text.lstrip("+-").isdecimal()
    return int(text, 8 if octal else 0)


_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}


def _scalar(node: Node) -> Any:
    text = node.value
    tag = node.tag.rpartition(":")[2]
    if tag == "null":
        return None
    if tag == "bool":
        return _BOOLS.get(text.lower(), text)
    if len(text) > MAX_NUMBER:
        return text
    try:
        if tag == "int":
            return _integer(text.replace("_", ""))
        if tag == "float":
            return float(text)
    except ValueError:
        return text  # sexagesimal and other spellings that the API server takes as text too
    return text
