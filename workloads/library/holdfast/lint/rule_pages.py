"""Writes what `lint --rule` prints: the list, or the page of one rule, from the rule itself."""

import json
from difflib import get_close_matches

from holdfast.lint import examples
from holdfast.lint.registry import Rule, all_rules
from holdfast.support.errors import InputError

SCHEMA = "holdfast.rules/1"
_JSON_FIELDS = ("id", "slug", "what", "why", "source", "fix", "bad", "good", "severity")


def show(name: str, *, as_json: bool) -> str:
    """Returns the page of a rule, or the list of all rules where `name` is empty.

    Raises InputError for an unknown rule.
    """
    rules = [_find(name)] if name else list(all_rules().values())
    if as_json:
        body = {"schema": SCHEMA, "rules": [_encode(rule) for rule in rules]}
        return json.dumps(body, indent=2) + "\n"
    return page(rules[0]) if name else _list(rules)


def _find(name: str) -> Rule:
    rules = all_rules()
    by_name = dict(rules)
    for rule in rules.values():
        by_name[rule.slug] = rule
    rule_id = name.partition("-")[0].upper()
    rule = by_name.get(name) or by_name.get(rule_id)
    if rule is None:
        matches = get_close_matches(name, by_name, n=1, cutoff=0.3)
        fix = "`holdfast lint --rule all` lists them"
        if matches:
            fix = f"did you mean {matches[0]}?"
        raise InputError(
            "unknown rule",
            got=name,
            allowed=f"{min(rules)} to {max(rules)}",
            fix=fix,
        )
    return rule


def _list(rules: list[Rule]) -> str:
    width = max(len(rule.name) for rule in rules)
    lines: list[str] = []
    for rule in rules:
        lines.append(f"{rule.name:{width}}  {rule.severity.value:7}  {rule.what}\n")
    return "".join(lines)


def page(rule: Rule) -> str:
    parts = [
        f"{rule.name} ({rule.severity.value})\n{rule.what}",
        f"why:    {rule.why}\nsource: {rule.source}\nfix:    {rule.fix}",
    ]
    for word, text in (("bad", rule.bad), ("good", rule.good)):
        if text:
            parts.append(_format_example(word, rule, text))
    return "\n\n".join(parts) + "\n"


def _format_example(word: str, rule: Rule, text: str) -> str:
    title = "whole object" if text.startswith("apiVersion:") else examples.BASES[rule.base].title
    lines = [f"  {line}" for line in text[:2_000].splitlines()]
    return "\n".join([f"{word} ({title}):", *lines])


def _encode(rule: Rule) -> dict[str, str]:
    return {field: getattr(rule, field) for field in _JSON_FIELDS}
