"""Text to YAML nodes, in time that grows with the text alone."""

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.nodes import Node

MAX_NODES = 101_000  # of a document, keys included: what may be built of it is half of that
# For each token the scanner looks at every level that is open. No object of Kubernetes comes near it.
MAX_DEPTH = 40


class _BoundedComposer(Composer):
    _nodes = _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
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


def composer() -> YAML:
    """For one document: it counts."""
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)  # pyright: ignore[reportAttributeAccessIssue]  # as the API server reads it: yes is a boolean
    yaml.Composer = _BoundedComposer
    return yaml
