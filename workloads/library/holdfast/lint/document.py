"""Reads YAML text as plain values that know their line and column.

PyYAML's libyaml binding, which every wheel of PyYAML has, composes the nodes. Plain scalars
resolve as in YAML 1.1, as the API server reads them: yes is a boolean. Each document of a file is
read alone: a broken one becomes a `Trouble`, and the others are still judged. Tags never build
Python objects, and aliases are expanded up to a limit.
"""

# Why it is so: infra/decisions/0060.

import codecs
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.error import MarkedYAMLError, YAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.support.errors import HoldfastError

# A ConfigMap of 1 MiB in base64, with the objects next to it.
MAX_FILE_BYTES = 3 << 19
# One byte more than the characters of a file may have.
MAX_READ_BYTES = 4 * MAX_FILE_BYTES + 1
# Nodes of one document, keys included: far more than a manifest has.
MAX_NODES = 101_000
# The scanner looks at every open level for each token; no Kubernetes object is nested so deep.
MAX_DEPTH = 40
# Values of one document after aliases are expanded: stops a bomb of nested aliases.
MAX_VALUES = 50_000
# Limits of a whole file: each document may repeat a small bomb, and one long text may be an alias
# everywhere.
MAX_FILE_VALUES = 200_000
MAX_FILE_CHARACTERS = 4 << 20
# Duplicate keys that are reported of one document.
MAX_DUPLICATES = 20
# Characters of a number: Python reads longer numbers and then refuses to print them.
MAX_NUMBER = 40

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """Position of a key or value.

    Lines and columns count from 1; `end` is exclusive and on the same line.
    """

    line: int
    column: int
    end: int


def decode(data: bytes) -> str:
    """Returns the text of at most MAX_READ_BYTES. Raises UnicodeDecodeError.

    The last character may have been cut off.
    """
    is_whole = len(data) < MAX_READ_BYTES
    return codecs.getincrementaldecoder("utf-8")().decode(data, is_whole)


def load_text(path: FilePath) -> str:
    """Returns the text of a regular file, at most one byte more than is judged.

    Raises OSError, also for pipes and devices.
    """
    # Without O_NONBLOCK a pipe would block. The open file is checked, so that no other can replace
    # it meanwhile.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "no regular file")
        return decode(file.read(MAX_READ_BYTES))


class BoundedLoader(yaml.CSafeLoader):
    """Bounds size and depth: PyYAML calls these methods around each node that it composes."""

    nodes = 0
    depth = 0

    def descend_resolver(self, current_node: Node | None, current_index: object) -> None:
        self.nodes += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} deep"
        elif self.nodes > MAX_NODES:
            problem = f"more than {MAX_NODES:,} values"
        else:
            return
        mark = current_node.start_mark if current_node else None
        raise ComposerError(None, None, problem, mark)

    def ascend_resolver(self) -> None:
        self.depth -= 1


# PyYAML wants a point and a sign in a float; Kubernetes takes 1e3 too.
_FLOAT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")
BoundedLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def _compose(text: str) -> Node | None:
    """Returns the node of one document.

    Raises YAMLError, and what else PyYAML raises on hostile text.
    """
    loader = BoundedLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


class Map(dict[str, Any]):
    """A mapping with the mark of each key and value."""

    __slots__ = ("key_marks", "value_marks")

    def __init__(self) -> None:
        super().__init__()
        self.key_marks: dict[str, Mark] = {}
        self.value_marks: dict[str, Mark] = {}


class Seq(list[Any]):
    """A sequence with the mark of each item."""

    __slots__ = ("item_marks",)

    def __init__(self) -> None:
        super().__init__()
        self.item_marks: list[Mark] = []


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason why a document was not judged. `kind` is broken, template, huge or duplicate."""

    kind: str
    message: str
    mark: Mark


@dataclass(slots=True)
class Document:
    """One YAML document: `value` is a Map, or whatever else the text holds."""

    value: Any
    first_line: int
    troubles: list[Trouble] = field(default_factory=list[Trouble])

    @property
    def is_judged(self) -> bool:
        """Returns whether rules see the document, which may have duplicate keys only."""
        return all(trouble.kind == "duplicate" for trouble in self.troubles)

    def locate(self, path: Path, *, of_key: bool = False) -> Mark:
        """Returns the mark of `path`: of a scalar itself, else, or with `of_key`, of its key.

        A path that is missing has the mark of its nearest ancestor.
        """
        value = self.value
        mark = Mark(self.first_line, 1, 2)
        for step in path:
            child = _find_child(value, step, of_key=of_key)
            if child is None:
                break
            value, mark = child
        return mark


def _find_child(parent: Any, step: str | int, *, of_key: bool) -> tuple[Any, Mark] | None:
    if isinstance(parent, Map) and isinstance(step, str) and step in parent:
        value = parent[step]
        is_scalar = value is not None and not isinstance(value, (Map, Seq))
        marks = parent.value_marks if is_scalar and not of_key else parent.key_marks
        return value, marks[step]
    if isinstance(parent, Seq) and isinstance(step, int) and step < len(parent):
        return parent[step], parent.item_marks[step]
    return None


_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)
# A directive before a document is for the YAML reader, and is no document itself.
_DIRECTIVE = re.compile(r"^%(?:YAML|TAG)\b.*$", re.MULTILINE)
# Helm and Go, Jinja, ERB, Terraform
_TEMPLATES = (("{{", "}}"), ("{%", "%}"), ("<%", "%>"), ("%{", "}"))
_CRD = re.compile(r"^kind:\s*[\"']?CustomResourceDefinition\b", re.MULTILINE)


def make_unread(kind: str, message: str) -> Document:
    """Returns a document without a value, whose only trouble is at its first line."""
    trouble = Trouble(kind, message, Mark(1, 1, 2))
    return Document(None, 1, [trouble])


def read(text: str) -> Iterator[Document]:
    """Yields the documents of one file in order, without the empty ones."""
    if len(text) > MAX_FILE_BYTES:
        message = f"{len(text):,} characters, more than {MAX_FILE_BYTES:,}: not read"
        yield make_unread("huge", message)
        return
    reader = _Reader()
    for chunk, first_line in _split(text.removeprefix("\ufeff")):
        document = reader.read(_DIRECTIVE.sub("", chunk), first_line)
        if document.value is not None or document.troubles:
            yield document


def _split(text: str) -> Iterator[tuple[str, int]]:
    """Yields the text of each document with the number of its first line.

    `---` at column 1 is always a separator in YAML.
    """
    start = 0
    line = 0
    for match in _START.finditer(text):
        yield text[start : match.start()], line + 1
        line += text.count("\n", start, match.end())
        start = match.end()
    yield text[start:], line + 1


def _make_trouble(chunk: str, message: str, mark: Mark) -> Trouble:
    for opening, closing in _TEMPLATES:
        if 0 <= chunk.find(opening) < chunk.rfind(closing):
            return Trouble("template", "a Helm or other text template, not YAML: not judged", mark)
    return Trouble("broken", message, mark)


class _NotPlainError(HoldfastError, ValueError):
    def __init__(self, message: str, node: Node) -> None:
        super().__init__(message)
        self.node = node


class _Reader:
    """Builds the values of the documents of one file.

    Counts what it builds, so that aliases cannot explode.
    """

    def __init__(self) -> None:
        # What is left of the limits of the whole file.
        self.values = MAX_FILE_VALUES
        self.characters = MAX_FILE_CHARACTERS

    def read(self, chunk: str, first_line: int) -> Document:
        document = Document(None, first_line)
        if _CRD.search(chunk):  # definitions are large and no rule reads them
            document.value = Map()
            return document
        self.document = document
        self.count = 0
        start = Mark(first_line, 1, 2)
        try:
            node = _compose(chunk)
            document.value = self.build(node) if node is not None else None
        except _NotPlainError as error:
            trouble = _make_trouble(chunk, str(error), self._mark(error.node))
            document.troubles.append(trouble)
        except MarkedYAMLError as error:
            position = error.problem_mark or error.context_mark
            mark = start
            if position:
                column = position.column + 1
                mark = Mark(first_line + position.line, column, column + 1)
            message = ", ".join(filter(None, (error.context, error.problem))) or "not YAML"
            document.troubles.append(_make_trouble(chunk, message, mark))
        except RecursionError:
            document.troubles.append(Trouble("broken", "an alias inside its own anchor", start))
        except (YAMLError, ValueError) as error:
            # PyYAML raises these on hostile text.
            message = str(error).partition("\n")[0] or type(error).__name__
            document.troubles.append(_make_trouble(chunk, message, start))
        return document

    def _mark(self, node: Node) -> Mark:
        start = node.start_mark
        end = node.end_mark
        line = self.document.first_line + start.line
        column = start.column + 1
        if start.line == end.line and end.column >= column:
            return Mark(line, column, end.column + 1)
        return Mark(line, column, column + 1)

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
            return self._build_map(node)
        if isinstance(node, SequenceNode):
            return self._build_seq(node)
        return _parse_scalar(node)

    def _build_map(self, node: Node) -> Map:
        result = Map()
        for key_node, value_node in self._merge_pairs(node):
            key = self._parse_key(key_node)
            mark = self._mark(key_node)
            if key in result and len(self.document.troubles) < MAX_DUPLICATES:
                message = f"key {key!r} is here a second time"
                self.document.troubles.append(Trouble("duplicate", message, mark))
            result[key] = self.build(value_node)
            result.key_marks[key] = mark
            result.value_marks[key] = self._mark(value_node)
        return result

    def _merge_pairs(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Yields the pairs of a mapping with `<<` resolved: own keys win over merged ones."""
        pairs = [(key, value) for key, value in node.value if key.tag != _MERGE]
        keys = {str(key.value) for key, _ in pairs}
        for source in _find_merge_sources(node):
            self._spend(source, len(source.value))
            for key, value in source.value:
                if str(key.value) not in keys:
                    keys.add(str(key.value))
                    yield key, value
        yield from pairs

    def _parse_key(self, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            raise _NotPlainError("a mapping or list as key", node)
        self._spend(node, 0)
        return str(node.value)

    def _build_seq(self, node: Node) -> Seq:
        result = Seq()
        for item in node.value:
            result.append(self.build(item))
            result.item_marks.append(self._mark(item))
        return result


_MERGE = "tag:yaml.org,2002:merge"


def _find_merge_sources(node: Node) -> Iterator[Node]:
    for key, value in node.value:
        if key.tag != _MERGE:
            continue
        sources = value.value if isinstance(value, SequenceNode) else [value]
        for source in sources:
            if isinstance(source, MappingNode) and source is not node:
                yield source


def _parse_integer(text: str) -> int:
    """Reads a number of YAML 1.1, where 0644 is octal."""
    digits = text.lstrip("+-")
    is_octal = digits.startswith("0") and digits.isdecimal()
    return int(text, 8 if is_octal else 0)


_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}


def _parse_scalar(node: Node) -> Any:
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
            return _parse_integer(text.replace("_", ""))
        if tag == "float":
            return float(text)
    except ValueError:
        return text  # sexagesimal and other spellings that the API server takes as text too
    return text
