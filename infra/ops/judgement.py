"""Print what the rules found, as text and as JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED
from infra.environments import Environment, placeholders, source_of
from infra.environments.checks import PLACEHOLDER
from infra.ops.doctor import Check, Verdict
from infra.ops.show import print_json, print_table
from infra.rules import RULES, Finding, judge_environment, judge_plans


def show_rules(as_json: bool) -> None:
    rows = [(r.id, r.title, r.reason, r.source) for r in RULES.values()]
    if as_json:
        keys = ("id", "title", "reason", "source")
        print_json("rules", rules=[dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table(("RULE", "WHAT HOLDS", "OTHERWISE", "SOURCE"), rows)


def check(environment: Environment, as_json: bool, cluster: Sequence[Check] = ()) -> int:
    """Judge what the environment asks for, before Terraform starts. The exit code: 0 when it may be deployed as it is.

    A CHANGE-ME or a freeze that is over breaks no rule: "right, but not settled" is a state of its own. `cluster`: what
    of the deployed one was looked at; 3 where nothing is wrong and some of it could not be judged.
    """
    findings, open_fields = judge_environment(environment), placeholders(environment)
    over = [freeze.name for freeze in environment.cluster.freezes if freeze.is_over(datetime.now(UTC))]
    off = [each for each in cluster if each.verdict is Verdict.BROKEN]
    state = "broken" if findings or off else "not settled" if open_fields or over else "right"
    if as_json:
        found = [as_object(finding) for finding in findings]
        print_json(
            "check",
            environment=environment.name,
            state=state,
            rules=len(RULES),
            findings=found,
            placeholders=open_fields,
            freezes_over=over,
            cluster=[asdict(each) for each in cluster],
        )
    else:
        for line in _text(environment, findings, open_fields, over, cluster):
            print(line)
        counted = f"{len(RULES)} rules, {len(findings)} findings, {len(open_fields)} placeholders"
        print(f"{environment.name}: {counted}: {'right, but not settled' if state == 'not settled' else state}")
    if state != "right":
        return EXIT_FINDINGS
    return EXIT_NOT_JUDGED if any(each.verdict is Verdict.UNKNOWN for each in cluster) else EXIT_DONE


def _text(
    environment: Environment,
    findings: Iterable[Finding],
    open_fields: Iterable[str],
    over: Iterable[str],
    cluster: Iterable[Check],
) -> Iterator[str]:
    source = source_of(environment.name)
    yield from map(lines, findings)
    yield from (f"{source}: {field} is still {PLACEHOLDER}" for field in open_fields)
    yield from (f"{source}: cluster.freezes[{name}] is over; name the next one, or remove it" for name in over)
    for each in cluster:
        yield f"cluster, {each.name}: {each.verdict}: {each.found}" + (f"\n  fix:     {each.fix}" if each.fix else "")


def judge_files(environment: Environment, files: Iterable[Path]) -> list[Finding]:
    """Judge real plans, as `terraform show -json` left them."""
    return judge_plans(environment, [json.loads(file.read_text()) for file in files])


def lines(finding: Finding) -> str:
    b = finding.violation
    return f"{b.where} [{finding.rule}]\n  got:     {b.got}\n  allowed: {b.allowed}\n  fix:     {b.fix}"


def as_object(finding: Finding) -> dict[str, str]:
    b = finding.violation
    return {"rule": finding.rule, "where": b.where, "got": b.got, "allowed": b.allowed, "fix": b.fix}
