"""YAML nodes by libyaml (PyYAML), in a tenth of the time, of texts that it reads as ruamel.yaml does.

Whatever they may read differently, and all that libyaml refuses, is `NotAlikeError`: ruamel.yaml's word counts.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from ruamel.yaml.resolver import VersionedResolver
from yaml import CollectionNode, Node, ScalarNode, SequenceNode, YAMLError
from yaml._yaml import CParser

from holdfast.contract.errors import HoldfastError

# Other characters than what is printed and line feeds, directives, ends of documents, lines of blanks (they end the head
# of a block scalar in one of the two only), anchors (so there are no aliases), `|#`.
_NOT_ALIKE = re.compile(
    "[^\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
    r"|^(?:%|---|\.\.\.| +$)|(?<![\w>&])&[\w-]|[|>][-+0-9]*#",
    re.MULTILINE,
)
_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


class NotAlikeError(HoldfastError):
    pass


def compose(text: str, version: tuple[int, int], *, max_nodes: int, max_depth: int) -> Node | None:
    if _NOT_ALIKE.search(text):
        raise NotAlikeError
    parser = _Parser(text)
    parser.patterns = _patterns(version)
    parser.nodes_left, parser.levels_left = max_nodes, max_depth
    try:
        node = parser.get_single_node()
    except YAMLError as error:
        raise NotAlikeError from error
    if isinstance(node, ScalarNode):
        raise NotAlikeError
    # Without a last line feed they differ on where a block ends.
    if isinstance(node, CollectionNode) and not (node.flow_style or text.endswith("\n")):
        raise NotAlikeError
    if parser.unresolved:  # a node with a tag of its own
        raise NotAlikeError
    return node


_Patterns = dict[str, list[tuple[str, Callable[[str], Any]]]]


@cache
def _patterns(version: tuple[int, int]) -> _Patterns:
    """By the first character of a plain scalar, the tags that it may get."""
    table = VersionedResolver(version).versioned_resolver
    return {first: [(tag, pattern.match) for tag, pattern in found] for first, found in table.items()}


class _Parser(CParser):
    """libyaml's composer asks these three, which would be a resolver's."""

    patterns: _Patterns
    nodes_left = levels_left = unresolved = 0
    in_flow = False

    def descend_resolver(self, parent: Any, index: Any) -> None:
        self.nodes_left -= 1
        self.levels_left -= 1
        if self.nodes_left < 0 or self.levels_left < 0:
            raise NotAlikeError
        self.unresolved += 1
        self.in_flow = parent is not None and parent.flow_style

    def ascend_resolver(self) -> None:
        self.levels_left += 1

    def resolve(self, kind: type[Node], value: str, implicit: tuple[bool, bool]) -> str:
        self.unresolved -= 1
        if kind is not ScalarNode:
            return _SEQ if kind is SequenceNode else _MAP
        plain, quoted = implicit
        # Nothing at all stands at another place there, and in a flow `?` may begin a key.
        if not quoted and (not value or (self.in_flow and "?" in value)):
            raise NotAlikeError
        if plain:
            for tag, matches in self.patterns.get(value[0], ()):
                if matches(value):
                    return tag
        return _STR
