"""Text to YAML nodes, in time that grows with the text alone."""

from typing import Any, Protocol, cast

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.nodes import Node as RuamelNode

try:
    from holdfast.lint import libyaml
except ImportError:  # no PyYAML, or one without libyaml
    libyaml = None

MAX_NODES = 101_000  # of a document, keys included: what may be built of it is half of that
# For each token the scanner looks at every level that is open. No object of Kubernetes comes near it.
MAX_DEPTH = 40
VERSION = (1, 1)  # as the API server reads it: yes is a boolean


class Place(Protocol):
    line: int
    column: int


class Node(Protocol):
    """What nodes of ruamel.yaml and of PyYAML have in common."""

    id: str
    """scalar, sequence, mapping"""
    tag: str
    value: Any
    start_mark: Place
    end_mark: Place


class _BoundedComposer(Composer):
    _nodes = _depth = 0

    def compose_node(self, parent: RuamelNode | None, index: Any) -> RuamelNode | None:
        self._nodes += 1
        self._depth += 1
        if self._depth > MAX_DEPTH or self._nodes > MAX_NODES:
            what = (
                f"nested more than {MAX_DEPTH} deep" if self._depth > MAX_DEPTH else f"more than {MAX_NODES:,} values"
            )
            raise ComposerError(None, None, what, self.parser.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def compose(text: str) -> Node | None:
    """The node of one document. MarkedYAMLError, and what else ruamel.yaml lets through on hostile text."""
    if libyaml:
        try:
            return cast(Node | None, libyaml.compose(text, VERSION, max_nodes=MAX_NODES, max_depth=MAX_DEPTH))
        except libyaml.NotAlikeError:
            pass
    return compose_slowly(text)


def compose_slowly(text: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = VERSION  # pyright: ignore[reportAttributeAccessIssue]
    yaml.Composer = _BoundedComposer  # counts, so each document has its own
    return yaml.compose(text)
