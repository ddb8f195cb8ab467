"""Registers the rules by id: a rule module decorates its checks with `rule`.

A rule carries its own documentation, and its two examples are its tests: it finds the bad one, and
all rules pass the good one. Distributions add rules by an entry point of the group
`holdfast.lint_rules` that names such a module:

    @rule(
        "ACME001", "owner", Severity.ERROR, on=Object,
        what="No owner.", why="Bills.", source="wiki", fix="add owner",
    )
    def owner(obj: Object, context: Context) -> Iterator[Hit]:
        if "owner" not in obj.labels:
            yield Hit(("metadata",), f"{obj.title} has no owner")
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from holdfast.lint.document import Mark
from holdfast.lint.finding import Finding, Hit, Severity
from holdfast.lint.object_index import ObjectIndex
from holdfast.lint.objects import Job, Object, Pod
from holdfast.lint.placement import Placement
from holdfast.lint.platform import Platform
from holdfast.support.errors import InputError
from holdfast.support.extensions import load_extensions

MODULES = (
    "placement",
    "flex",
    "machines",
    "shutdown",
    "jobs",
    "failure_policies",
    "elastic",
    "network",
    "selectors",
    "disruption",
    "serving",
    "scaling",
    "storage",
    "volumes",
    "queue",
    "capacity",
    "classes",
    "identity",
    "references",
    "targets",
    "rights",
    "quantities",
    "probes",
    "variables",
    "programs",
    "listeners",
    "options",
    "quotas",
    "contents",
    "models",
    "files",
    "schedules",
    "metadata",
    "affinity",
    "runtimes",
    "images",
    "fields",
    "refusals",
    "forms",
    "combinations",
    "exposure",
    "progress",
    "gateways",
    "health_checks",
    "servers",
    "idle",
    "ownership",
    "paths",
    "fetches",
    "operators",
    "configs",
    "egress",
    "admissions",
    "rollouts",
    "subscriptions",
    "inits",
    "priorities",
    "claims",
    "devices",
    "mistimed",
    "conflicts",
    "custom",
    "scripts",
    "stock",
    "access",
    "refused_pods",
    "settings",
    "drivers",
    "model_options",
    "queues",
    "edges",
    "launches",
    "left_off",
    "addresses",
    "misspelt",
    "semantics",
    "opened_ports",
    "counts",
    "identities",
    "meanings",
    "databases",
    "linter",
)
GROUP = "holdfast.lint_rules"


@dataclass(eq=False)
class Context:
    """Platform and objects, which a check gets in addition to its subject."""

    platform: Platform
    index: ObjectIndex
    _placements: dict[int, Placement] = field(default_factory=dict[int, Placement])

    def place(self, pod: Pod) -> Placement:
        """Computes the placement of a pod once, since most rules ask for it."""
        placement = self._placements.get(id(pod))
        if placement is None:
            placement = Placement(pod, self.platform)
            self._placements[id(pod)] = placement
        return placement


Subject = Object | Pod | Job
SubjectType = type[Object] | type[Pod] | type[Job]
# Rules about what a patch of Kustomize contains. The others ask for something that its base may
# have.
ON_PATCHES = frozenset(
    {
        "HF001",
        "HF002",
        "HF003",
        "HF007",
        "HF008",
        "HF011",
        "HF012",
        "HF013",
        "HF016",
        "HF021",
        "HF022",
        "HF035",
        "HF101",
        "HF103",
        "HF104",
        "HF105",
        "HF107",
        "HF108",
        "HF111",
        "HF115",
        "HF302",
        "HF415",
        "HF416",
        "HF501",
    }
)
Check = Callable[[Any, Context], Iterable[Hit]]
CheckT = TypeVar("CheckT", bound=Check)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    id: str
    slug: str
    severity: Severity
    subject: SubjectType
    kinds: tuple[str, ...] = ()
    """Kinds of objects that the rule judges; empty: all."""
    what: str
    why: str
    source: str
    fix: str
    bad: str = ""
    good: str = ""
    """The good example. Empty: it is the base itself, which the bad one changes."""
    base: str = ""
    """The clean object that the examples change; empty where they are whole objects."""
    check: Check | None
    """The check; None for findings of the engine itself."""

    @property
    def name(self) -> str:
        return f"{self.id}-{self.slug}"

    def finding(self, message: str, file: str, mark: Mark, **fields: str) -> Finding:
        """Makes a finding of this rule. `fields` are fields of Finding; `fix` defaults to ours."""
        fix = fields.pop("fix", self.fix)
        return Finding(self.id, self.severity, message, fix, file, mark, **fields)


_RULES: dict[str, Rule] = {}


def rule(
    rule_id: str, slug: str, severity: Severity, *, on: SubjectType, **fields: Any
) -> Callable[[CheckT], CheckT]:
    """Registers a check. Examples change the clean object that `base` names, or are whole objects.

    `fields` are fields of Rule: what, why, source, fix, kinds, and the examples. Raises InputError
    where the id is taken, so that no distribution replaces a rule.

        @rule(
            "ACME001", "owner", Severity.ERROR, on=Object,
            what="No owner.", why="Bills.", source="wiki", fix="add owner",
        )
        def check_owner(obj: Object, context: Context) -> Iterator[Hit]:
            if "owner" not in obj.labels:
                yield Hit(("metadata",), f"{obj.title} has no owner")
    """

    def register(check: CheckT) -> CheckT:
        if rule_id in _RULES:
            raise InputError(
                "id of a lint rule",
                got=rule_id,
                allowed="one that no rule has",
                fix="choose another",
            )
        _RULES[rule_id] = Rule(
            id=rule_id,
            slug=slug,
            severity=severity,
            subject=on,
            check=check,
            **fields,
        )
        return check

    return register


@cache
def all_rules() -> dict[str, Rule]:
    """Returns the rules by id, those of other distributions included.

    Raises InputError where one of another distribution cannot be used.
    """
    for module in MODULES:
        import_module(f"holdfast.lint.rules.{module}")
    load_extensions(GROUP)
    return dict(sorted(_RULES.items()))


def subjects(obj: Object, rule: Rule) -> Sequence[Subject]:
    """Returns what a rule judges of an object: the object itself, its pods, or its Jobs."""
    if rule.kinds and obj.kind not in rule.kinds:
        return []
    if rule.subject is Pod:
        return obj.pods
    if rule.subject is Job:
        return obj.jobs
    return [obj]
