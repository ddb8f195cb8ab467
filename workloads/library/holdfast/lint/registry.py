"""The rules by id. A rule module decorates its checks with `rule`; the engine and `rules` read `all_rules`.

A rule carries its own documentation, and its two examples are its tests: the bad one is found by it,
the good one is clean under every rule.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, Pod
from holdfast.lint.placement import Placement
from holdfast.lint.platform import Platform
from holdfast.lint.world import World

MODULES = (
    "placement",
    "nodes", "flex", "gpu", "shutdown", "jobs", "elastic", "disruption", "serving", "storage", "queue", "quotas", "classes", "security", "references", "fields", "linter",
)  # fmt: skip


@dataclass(eq=False)
class Context:
    """What a check is handed beside its subject."""

    platform: Platform
    world: World

    def __post_init__(self) -> None:
        self._placements: dict[int, Placement] = {}

    def place(self, pod: Pod) -> Placement:
        """Computed once for each pod, since most rules ask."""
        return self._placements.setdefault(id(pod), Placement(pod, self.platform))


Subject = Object | Pod | Job
# Rules that judge what stands in a patch of Kustomize; the others ask for something that its base may have.
ON_PATCHES = frozenset({
    "HF001", "HF002", "HF003", "HF007", "HF008", "HF009", "HF011", "HF012", "HF013", "HF014", "HF016", "HF021",
    "HF022", "HF035", "HF101", "HF103", "HF104", "HF105", "HF107", "HF108", "HF111", "HF115", "HF120", "HF302",
    "HF308", "HF401", "HF402", "HF409", "HF415", "HF416", "HF501", "HF502", "HF504", "HF505",
})  # fmt: skip
Check = Callable[[Any, Context], Iterable[Hit]]
CheckT = TypeVar("CheckT", bound=Check)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    id: str
    slug: str
    severity: Severity
    subject: type[Object] | type[Pod] | type[Job]
    what: str
    why: str
    source: str
    fix: str
    bad: str
    good: str
    base: str
    """The clean object that the examples change; empty where they are whole objects."""
    since: str
    check: Check | None
    """None for findings of the engine itself."""

    @property
    def name(self) -> str:
        return f"{self.id}-{self.slug}"


_RULES: dict[str, Rule] = {}


def rule(
    rule_id: str,
    slug: str,
    severity: Severity,
    *,
    on: type[Object] | type[Pod] | type[Job],
    what: str,
    why: str,
    source: str,
    fix: str,
    bad: str,
    good: str,
    base: str = "",
    since: str = "0.1",
) -> Callable[[CheckT], CheckT]:
    """Register a check. Examples of a rule `on=Pod` change the pod of `base`, others the whole object."""

    def register(check: CheckT) -> CheckT:
        _add(Rule(id=rule_id, slug=slug, severity=severity, subject=on, what=what, why=why, source=source, fix=fix,
                  bad=bad, good=good, base=base, since=since, check=check))  # fmt: skip
        return check

    return register


def document(
    rule_id: str,
    slug: str,
    severity: Severity,
    *,
    on: type[Object],
    what: str,
    why: str,
    source: str,
    fix: str,
    bad: str,
    good: str,
) -> None:
    """Register what the engine finds by itself."""
    _add(Rule(id=rule_id, slug=slug, severity=severity, subject=on, what=what, why=why, source=source, fix=fix,
              bad=bad, good=good, base="", since="0.1", check=None))  # fmt: skip


def _add(new: Rule) -> None:
    assert new.id not in _RULES, new.id
    _RULES[new.id] = new


@cache
def all_rules() -> dict[str, Rule]:
    for module in MODULES:
        import_module(f"holdfast.lint.rules.{module}")
    return dict(sorted(_RULES.items()))


def subjects(obj: Object, rule: Rule) -> Iterator[Subject]:
    if rule.subject is Object:
        yield obj
    elif rule.subject is Pod:
        yield from obj.pods
    else:
        yield from obj.jobs
