"""Say what the rules found."""

import json
from collections.abc import Iterable
from pathlib import Path

from infra.environments import Environment
from infra.ops.show import print_json, print_table
from infra.rules import RULES, Finding, judge_environment, judge_plans


def show_rules(as_json: bool) -> None:
    rows = [(r.id, r.title, r.reason, r.source) for r in RULES.values()]
    if as_json:
        keys = ("id", "title", "reason", "source")
        print_json("rules", rules=[dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table(("RULE", "WHAT HOLDS", "OTHERWISE", "SOURCE"), rows)


def check(environment: Environment, as_json: bool) -> bool:
    """Judge what the environment asks for, before Terraform starts. True when nothing was found."""
    return _show(judge_environment(environment), environment, as_json)


def judge_files(environment: Environment, files: Iterable[Path]) -> list[Finding]:
    """Judge real plans, as `terraform show -json` left them."""
    return judge_plans(environment, [json.loads(file.read_text()) for file in files])


def _show(findings: list[Finding], environment: Environment, as_json: bool) -> bool:
    if as_json:
        print_json(
            "check",
            environment=environment.name,
            rules=len(RULES),
            findings=[as_object(finding) for finding in findings],
        )
    else:
        for finding in findings:
            print(lines(finding))
        print(f"{environment.name}: {len(RULES)} rules, {len(findings)} findings")
    return not findings


def lines(finding: Finding) -> str:
    b = finding.violation
    return f"{b.where} [{finding.rule}]\n  got:     {b.got}\n  allowed: {b.allowed}\n  fix:     {b.fix}"


def as_object(finding: Finding) -> dict[str, str]:
    b = finding.violation
    return {"rule": finding.rule, "where": b.where, "got": b.got, "allowed": b.allowed, "fix": b.fix}
