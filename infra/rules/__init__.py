"""What must hold of an environment and of its plan, beyond what the provider checks.

Judged before Terraform starts, and again on the real plan. Which kind of rule lives where:
infra/decisions/0009.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.support.errors import InputError
from infra.environments import Environment, source_of
from infra.rules import (
    alerts,
    autoprovisioning,
    fit,
    hardening,
    identity,
    network,
    pools,
    refusals,
    services,
    whole,
)
from infra.rules.model import RULES, Facts, Finding, Rule, facts_of_plans, facts_of_specs

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
    autoprovisioning,
    hardening,
    network,
    identity,
    services,
    alerts,
    whole,
)


def judge(facts: Facts) -> list[Finding]:
    return [replace(found, rule=rule.id) for rule in RULES.values() for found in rule.check(facts)]


def judge_environment(environment: Environment) -> list[Finding]:
    return judge(facts_of_specs(environment))


def judge_plans(environment: Environment, plans: Iterable[Mapping[str, Any]]) -> list[Finding]:
    return judge(facts_of_plans(environment, plans))


def require_clean(environment: Environment) -> None:
    """Raise the first finding as an InputError."""
    for finding in judge_environment(environment):
        what = f"{source_of(environment.name)}: {finding.where} [{finding.rule}]"
        raise InputError(
            what,
            got=finding.got,
            allowed=finding.allowed,
            fix=finding.fix,
        )
