"""Reads `.holdfast-lint.yaml`, which lowers rules for a repository or switches them off.

It has one entry for each rule, with a level and a reason:

    schema: holdfast.lint-settings/1
    rules:
      HF119: {level: off, reason: Argo CD deletes finished Jobs}

The file in a folder, or the nearest one above it, applies to all files of the folder.
"""

# Why it is so: infra/decisions/0145.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.lint.document import MAX_FILE_BYTES, Document, load_text, read
from holdfast.lint.finding import Finding, Severity
from holdfast.lint.objects import as_text
from holdfast.lint.registry import all_rules
from holdfast.support.errors import InputError

FILE = ".holdfast-lint.yaml"
SCHEMA = "holdfast.lint-settings/1"
_OFF = "off"
_FIX = "rules: {HF114: {level: info, reason: each Job has one pod}}"
_FIELDS = ("schema", "rules")
_RULE_FIELDS = ("level", "reason")
# From the highest; a rule may be lowered only.
_SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True)
class RuleSetting:
    level: Severity | None
    """None: the rule is off."""
    reason: str


@dataclass(frozen=True, slots=True)
class Settings:
    path: Path
    rules: Mapping[str, RuleSetting]

    def apply(self, finding: Finding) -> Finding:
        """Returns a finding with the level of its rule; one that is off counts as ignored."""
        setting = self.rules.get(finding.rule)
        if setting is None or finding.suppressed:
            return finding
        if setting.level is None:
            return replace(finding, suppressed=f"{setting.reason} ({FILE})")
        levels = f"{finding.severity.value} lowered to {setting.level.value}"
        basis = f"{levels} by {FILE}: {setting.reason}"
        if finding.basis:
            basis = f"{finding.basis}; {basis}"
        return replace(finding, severity=setting.level, basis=basis)


def find_settings(folder: Path) -> Settings | None:
    """Returns the settings of a folder; None where neither it nor a folder above has the file.

    Raises InputError if the file is wrong.
    """
    start = folder.resolve()
    for parent in (start, *start.parents):
        path = parent / FILE
        if path.is_file():
            return parse_settings(path, _load(path))
    return None


def _load(path: Path) -> str:
    try:
        text = load_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(path, str(error), "UTF-8 text") from error
    if len(text) > MAX_FILE_BYTES:
        raise _refuse(path, "a larger file", f"{MAX_FILE_BYTES:,} bytes")
    return text


def parse_settings(path: Path, text: str) -> Settings:
    """Parses the text of a settings file. Raises InputError with the line if it is wrong."""
    documents: list[Document] = list(read(text))
    for document in documents:
        for trouble in document.troubles:
            problem = f"line {trouble.mark.line}: {trouble.message}"
            raise _refuse(path, problem, "YAML")
    body = documents[0].value if len(documents) == 1 else None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise _refuse(path, "another document", f"one document with `schema: {SCHEMA}`")
    _require_fields(path, body, _FIELDS, "the file")
    entries = body.get("rules")
    if not isinstance(entries, dict):
        raise _refuse(path, f"rules: {entries}", "a mapping of rules, as HF119: {level, reason}")
    rules: dict[str, RuleSetting] = {}
    for name, entry in entries.items():
        rule_id, setting = _parse_rule(path, name, entry)
        rules[rule_id] = setting
    return Settings(path, rules)


def _parse_rule(path: Path, name: Any, entry: Any) -> tuple[str, RuleSetting]:
    rule = all_rules().get(str(name))
    if rule is None:
        raise _refuse(path, f"rule {name}", "a rule that `holdfast lint --rule all` lists")
    if not isinstance(entry, dict):
        raise _refuse(path, f"{name}: {entry}", "{level: LEVEL, reason: TEXT}")
    _require_fields(path, entry, _RULE_FIELDS, str(name))
    levels = list(_list_levels(rule.severity))
    # YAML reads a bare `off` as false.
    stated_level = entry.get("level")
    level = _OFF if stated_level is False else as_text(stated_level)
    if level not in levels:
        shown = ", ".join(levels)
        allowed = f"{shown}: {name} is {rule.severity.value}, and can only be lowered"
        raise _refuse(path, f"{name}: level {stated_level}", allowed)
    reason = as_text(entry.get("reason")).strip()
    if not reason:
        raise _refuse(path, f"{name} without a reason", "a reason, as a text")
    severity = None if level == _OFF else Severity(level)
    return rule.id, RuleSetting(severity, reason)


def _list_levels(severity: Severity) -> Iterator[str]:
    """Yields the levels below a severity."""
    for lower in _SEVERITIES[_SEVERITIES.index(severity) + 1 :]:
        yield lower.value
    yield _OFF


def _require_fields(path: Path, body: dict[str, Any], names: tuple[str, ...], place: str) -> None:
    for name in body:
        if name not in names:
            raise _refuse(path, f"{place}: field {name}", ", ".join(names))


def _refuse(path: Path, got: str, allowed: str) -> InputError:
    return InputError(f"{path} cannot be used", got=got, allowed=allowed, fix=_FIX)
