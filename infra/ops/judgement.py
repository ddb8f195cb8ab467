"""Print what the rules found, as text and as JSON."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.tables import print_json, print_table
from infra.environments import Environment, placeholders, source_of
from infra.environments.checks import PLACEHOLDER
from infra.rules import RULES, Finding, judge_environment, judge_plans


def show_rules(as_json: bool) -> None:
    rows = [(r.id, r.title, r.reason, r.source) for r in RULES.values()]
    if as_json:
        keys = ("id", "title", "reason", "source")
        print_json("rules", rules=[dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table(("RULE", "WHAT HOLDS", "OTHERWISE", "SOURCE"), rows)


def check(environment: Environment, as_json: bool) -> int:
    """Judge what the environment asks for, before Terraform starts. The exit code: 0 when it may be deployed as it is.

    A CHANGE-ME or a freeze that is over breaks no rule: "valid, but not ready to deploy" is a state of its own.
    """
    findings, open_fields = judge_environment(environment), placeholders(environment)
    over = [freeze.name for freeze in environment.cluster.freezes if freeze.is_over(datetime.now(UTC))]
    state = "broken" if findings else "not settled" if open_fields or over else "right"
    if as_json:
        found = [asdict(finding) for finding in findings]
        print_json(
            "check",
            environment=environment.name,
            state=state,
            rules=len(RULES),
            findings=found,
            placeholders=open_fields,
            freezes_over=over,
        )
    else:
        for line in _text(environment, findings, open_fields, over):
            print(line)
        counted = f"{len(RULES)} rules, {len(findings)} findings, {len(open_fields)} placeholders"
        print(f"{environment.name}: {counted}: {'valid, but not ready to deploy' if state == 'not settled' else state}")
    return EXIT_DONE if state == "right" else EXIT_FINDINGS


def _text(
    environment: Environment,
    findings: Iterable[Finding],
    open_fields: Iterable[str],
    over: Iterable[str],
) -> Iterator[str]:
    source = source_of(environment.name)
    yield from map(lines, findings)
    yield from (f"{source}: {field} is still {PLACEHOLDER}" for field in open_fields)
    yield from (f"{source}: cluster.freezes[{name}] is over; name the next one, or remove it" for name in over)


def judge_files(environment: Environment, files: Iterable[Path]) -> list[Finding]:
    """Judge real plans, as `terraform show -json` left them."""
    return judge_plans(environment, [json.loads(file.read_text()) for file in files])


def lines(found: Finding) -> str:
    return f"{found.where} [{found.rule}]\n  got:     {found.got}\n  allowed: {found.allowed}\n  fix:     {found.fix}"
