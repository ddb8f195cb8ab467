"""Rules for an environment and for its plan, beyond what the provider checks.

They are applied before Terraform starts, and again to the real plan. infra/decisions/0009 says
which kind of rule lives where.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.support.errors import InputError
from infra.environments import Environment, source_path
from infra.rules import (
    alerts,
    autoprovisioning,
    features,
    fit,
    hardening,
    identity,
    limits,
    network,
    pools,
    queries,
    refusals,
    replacement,
    services,
    whole,
)
from infra.rules.model import RULES, Facts, Finding, Rule, read_plans, read_specs

__all__ = [
    "RULES",
    "Facts",
    "Finding",
    "Rule",
    "judge",
    "judge_environment",
    "judge_plans",
    "require_clean",
]

# Importing a module registers its rules.
MODULES = (
    pools,
    fit,
    refusals,
    limits,
    queries,
    autoprovisioning,
    features,
    hardening,
    network,
    identity,
    services,
    alerts,
    replacement,
    whole,
)


def judge(facts: Facts) -> list[Finding]:
    """Return what breaks a rule, rule by rule."""
    findings = []
    for rule in RULES.values():
        for finding in rule.check(facts):
            findings.append(replace(finding, rule=rule.id))
    return findings


def judge_environment(environment: Environment) -> list[Finding]:
    return judge(read_specs(environment))


def judge_plans(environment: Environment, plans: Iterable[Mapping[str, Any]]) -> list[Finding]:
    return judge(read_plans(environment, plans))


def require_clean(environment: Environment) -> None:
    """Raise the first finding as an InputError."""
    for finding in judge_environment(environment):
        raise InputError(
            f"{source_path(environment.name)}: {finding.where} [{finding.rule}]",
            got=finding.got,
            allowed=finding.allowed,
            fix=finding.fix,
        )
