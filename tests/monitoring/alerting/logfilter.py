"""The part of Cloud Logging's filter language that the alerts use: AND, OR, brackets, path="value",
path=("a" OR "b").
"""

import re
from typing import Any

LOG = re.compile(r'log_id\("([^"]*)"\)')
COMPARISON = re.compile(r'([\w.]+)=(\([^()]*\)|"[^"]*")')


def matches(text: str, entry: dict[str, Any]) -> bool:
    """Each comparison becomes its answer; what is left then is Python."""

    def compared(found: re.Match[str]) -> str:
        wanted = set(re.findall(r'"([^"]*)"', found[2]))
        return str(not wanted.isdisjoint(_values(entry, found[1].split("."))))

    def logged(found: re.Match[str]) -> str:
        return str(entry["logName"].endswith("/logs/" + found[1].replace("/", "%2F")))

    answers = COMPARISON.sub(compared, LOG.sub(logged, text))
    assert re.fullmatch(r"(True|False|AND|OR|[\s()])+", answers), (
        f"a construct that is not known here: {answers}"
    )
    return eval(answers.replace("AND", "and").replace("OR", "or"))  # noqa: S307  (nothing else is left, see above)


def _values(node: Any, path: list[str]) -> list[str]:
    """A path goes through lists: any element may match."""
    if isinstance(node, list):
        return [value for item in node for value in _values(item, path)]
    if not path:
        return [node]
    return _values(node.get(path[0], []), path[1:]) if isinstance(node, dict) else []
