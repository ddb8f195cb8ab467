"""The part of Cloud Logging's filter language that the alerts use: AND, OR, brackets, path="value",
path=("a" OR "b").
"""

import re
from typing import Any

LOG = re.compile(r'log_id\("([^"]*)"\)')
COMPARISON = re.compile(r'([\w.]+)=(\([^()]*\)|"[^"]*")')


def matches(text: str, entry: dict[str, Any]) -> bool:
    """Tell whether an entry matches: comparisons become their results, and Python joins those."""

    def compare(match: re.Match[str]) -> str:
        values = set(re.findall(r'"([^"]*)"', match[2]))
        return str(not values.isdisjoint(_values(entry, match[1].split("."))))

    def match_log(match: re.Match[str]) -> str:
        return str(entry["logName"].endswith("/logs/" + match[1].replace("/", "%2F")))

    answers = COMPARISON.sub(compare, LOG.sub(match_log, text))
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
