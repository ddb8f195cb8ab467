"""The part of Cloud Logging's filter language that the alerts use: AND, OR, brackets, path="value", path=("a" OR "b")."""

import re
from typing import Any

TOKEN = re.compile(r'\s*(?:(AND|OR)\b|(log_id)\("([^"]*)"\)|([()=])|"([^"]*)"|([\w.]+))')


def matches(text: str, entry: dict[str, Any]) -> bool:
    tokens = [match.groups() for match in TOKEN.finditer(text)]
    assert "".join(TOKEN.sub("", text).split()) == "", "a construct that this evaluator does not know"
    value, rest = _either(tokens, entry)
    assert not rest, rest
    return value


def _either(tokens: list[Any], entry: dict[str, Any]) -> tuple[bool, list[Any]]:
    value, tokens = _all(tokens, entry)
    while tokens and tokens[0][0] == "OR":
        other, tokens = _all(tokens[1:], entry)
        value = value or other
    return value, tokens


def _all(tokens: list[Any], entry: dict[str, Any]) -> tuple[bool, list[Any]]:
    value, tokens = _term(tokens, entry)
    while tokens and tokens[0][0] == "AND":
        other, tokens = _term(tokens[1:], entry)
        value = value and other
    return value, tokens


def _term(tokens: list[Any], entry: dict[str, Any]) -> tuple[bool, list[Any]]:
    (_, log_id, log_name, mark, _, path), rest = tokens[0], tokens[1:]
    if log_id:
        return entry["logName"].endswith("/logs/" + log_name.replace("/", "%2F")), rest
    if mark == "(":
        value, rest = _either(rest, entry)
        assert rest[0][3] == ")"
        return value, rest[1:]
    assert path and rest[0][3] == "=", tokens[:3]
    wanted, rest = _wanted(rest[1:])
    return bool(wanted.intersection(_values(entry, path.split(".")))), rest


def _wanted(tokens: list[Any]) -> tuple[set[str], list[Any]]:
    if tokens[0][3] != "(":
        return {tokens[0][4]}, tokens[1:]
    end = next(n for n, token in enumerate(tokens) if token[3] == ")")
    return {token[4] for token in tokens[1:end] if token[4]}, tokens[end + 1 :]


def _values(node: Any, path: list[str]) -> list[str]:
    """A path goes through lists: any element may match."""
    if isinstance(node, list):
        return [value for item in node for value in _values(item, path)]
    if not path:
        return [node]
    return _values(node.get(path[0], []), path[1:]) if isinstance(node, dict) else []
