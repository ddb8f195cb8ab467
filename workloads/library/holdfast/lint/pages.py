"""What `lint --rule` prints: the list, or the page of one rule, from the rule itself."""

import json
from difflib import get_close_matches

from holdfast.lint import examples
from holdfast.lint.registry import Rule, all_rules
from holdfast.support.errors import InputError

SCHEMA = "holdfast.rules/1"


def show(name: str, *, as_json: bool) -> str:
    chosen = [_find(name)] if name else list(all_rules().values())
    if as_json:
        return (
            json.dumps(
                {
                    "schema": SCHEMA,
                    "rules": [_data(rule) for rule in chosen],
                },
                indent=2,
            )
            + "\n"
        )
    return page(chosen[0]) if name else _list(chosen)


def _find(name: str) -> Rule:
    rules = all_rules()
    known = {rule.id: rule for rule in rules.values()} | {
        rule.slug: rule for rule in rules.values()
    }
    found = known.get(name) or known.get(name.partition("-")[0].upper())
    if found is None:
        near = get_close_matches(name, known, n=1, cutoff=0.3)
        fix = f"did you mean {near[0]}?" if near else "`holdfast lint --rule all` lists them"
        raise InputError(
            "unknown rule",
            got=name,
            allowed=f"{min(rules)} to {max(rules)}",
            fix=fix,
        )
    return found


def _list(rules: list[Rule]) -> str:
    width = max(len(rule.name) for rule in rules)
    return "".join(f"{rule.name:{width}}  {rule.severity.value:7}  {rule.what}\n" for rule in rules)


def page(rule: Rule) -> str:
    parts = [
        f"{rule.name} ({rule.severity.value})\n{rule.what}",
        f"why:    {rule.why}\nsource: {rule.source}\nfix:    {rule.fix}",
        *(
            _example(word, rule, text)
            for word, text in (("bad", rule.bad), ("good", rule.good))
            if text
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _example(word: str, rule: Rule, text: str) -> str:
    place = "whole object" if text.startswith("apiVersion:") else examples.BASES[rule.base].title
    return f"{word} ({place}):\n" + "\n".join(f"  {line}" for line in text[:2_000].splitlines())


def example_text(rule: Rule, text: str) -> str:
    """The example as a file: JSON is YAML, and quotes every string."""
    if not rule.base or text.startswith("apiVersion:"):
        return text
    return "---\n".join(
        json.dumps(body, indent=1) + "\n" for body in examples.whole(rule.base, text)
    )


def _data(rule: Rule) -> dict[str, str]:
    fields = ("id", "slug", "what", "why", "source", "fix", "bad", "good", "severity")
    return {field: getattr(rule, field) for field in fields}
