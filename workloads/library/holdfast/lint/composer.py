"""Text to YAML nodes with their places, by libyaml, which every wheel of PyYAML brings.

Plain scalars resolve as YAML 1.1, as the API server reads them: yes is a boolean.
"""

import re

import yaml
from yaml.composer import ComposerError
from yaml.nodes import Node

MAX_NODES = 101_000  # of a document, keys included; more than a manifest has by far
# the scanner looks at every open level for each token; no Kubernetes object is nested so deep
MAX_DEPTH = 40


class _Loader(yaml.CSafeLoader):
    """PyYAML calls these methods around each node that it composes."""

    nodes = depth = 0

    def descend_resolver(self, current_node: Node | None, current_index: object) -> None:
        self.nodes += 1
        self.depth += 1
        what = f"nested more than {MAX_DEPTH} deep" if self.depth > MAX_DEPTH else ""
        what = what or (f"more than {MAX_NODES:,} values" if self.nodes > MAX_NODES else "")
        if what:
            raise ComposerError(None, None, what, current_node.start_mark if current_node else None)

    def ascend_resolver(self) -> None:
        self.depth -= 1


# PyYAML wants a point and a sign in a float; Kubernetes takes 1e3 too.
_FLOAT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def compose(text: str) -> Node | None:
    """The node of one document. YAMLError, and what else PyYAML raises on hostile text."""
    reader = _Loader(text)
    try:
        return reader.get_single_node()
    finally:
        reader.dispose()
