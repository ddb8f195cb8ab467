"""Findings that a team accepts: by comment or by annotation.

Each needs a reason. An ignore that silences nothing, has no reason or is past its date is a finding itself, so that
the list of exceptions stays true.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date

from holdfast.lint.document import Mark
from holdfast.lint.finding import Finding
from holdfast.lint.objects import Object, as_map, as_text, dig
from holdfast.lint.registry import all_rules

ANNOTATION = "holdfast.dev/ignore-"
_COMMENT = re.compile(r"#\s*holdfast:\s*ignore\[([^\]]{0,200})\]\s*(.*)$")
_UNTIL = re.compile(r"\(?until[ =](\d{4}-\d\d-\d\d)\)?$")


@dataclass(eq=False)
class Ignore:
    rule: str
    reason: str
    file: str
    """Where the ignore itself is, with `mark`."""
    mark: Mark
    until: date | None = None
    lines: tuple[int, ...] = ()
    """Comment: the lines of the same file that it covers."""
    title: str = ""
    """Annotation: the one object of the same file that it covers."""
    used: bool = field(default=False)

    def covers(self, finding: Finding) -> bool:
        if self.rule != finding.rule:
            return False
        if finding.file != self.file:
            return False
        return finding.mark.line in self.lines if self.lines else finding.object_name == self.title


def split_until(text: str) -> tuple[str, date | None]:
    """`reason (until 2027-01-31)` -> reason and date."""
    text = text.strip()
    match = _UNTIL.search(text, max(0, len(text) - 40))
    if not match:
        return text, None
    try:
        return text[: match.start()].strip(), date.fromisoformat(match.group(1))
    except ValueError:
        return text, None


def of_comments(file: str, text: str) -> list[Ignore]:
    """`# holdfast: ignore[HF101] reason`, for its own line or, on a line of its own, for the next one."""
    if "holdfast:" not in text:
        return []
    found: list[Ignore] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _COMMENT.search(line)
        if not match:
            continue
        alone = line.lstrip().startswith("#")
        reason, until = split_until(match.group(2))
        mark = Mark(number, match.start() + 1, match.end() + 1)
        for rule in match.group(1).split(","):
            found.append(Ignore(rule.strip(), reason, file, mark, until, (number + 1 if alone else number,)))
    return found


def of_annotations(obj: Object) -> Iterator[Ignore]:
    """`holdfast.dev/ignore-HF101: reason` on the object or on a pod template of it."""
    places = [((), obj.body), *((pod.path, pod.template) for pod in obj.pods if pod.path)]
    for path, body in places:
        for key, value in as_map(dig(body, "metadata", "annotations")).items():
            if key.startswith(ANNOTATION):
                reason, until = split_until(as_text(value))
                mark = obj.document.at((*obj.root, *path, "metadata", "annotations", key))
                rule = key.removeprefix(ANNOTATION)
                yield Ignore(rule, reason, obj.file, mark, until, title=obj.title)


def apply(ignores: list[Ignore], findings: list[Finding], today: date) -> list[Finding]:
    """The findings, the silenced ones marked with the reason, and one finding for each bad ignore."""
    # By where they may apply, so that a finding is compared with few of them.
    index: dict[tuple[str, ...], list[Ignore]] = defaultdict(list)
    for ignore in ignores:
        if ignore.reason and not _expired(ignore, today):
            for key in _keys(ignore):
                index[key].append(ignore)
    judged = [_silenced(finding, index) for finding in findings]
    return [*judged, *(bad for ignore in ignores for bad in _complaint(ignore, today))]


def _keys(ignore: Ignore) -> list[tuple[str, ...]]:
    if ignore.lines:
        return [(ignore.rule, ignore.file, str(line)) for line in ignore.lines]
    return [(ignore.rule, ignore.file, ignore.title)]


def _expired(ignore: Ignore, today: date) -> bool:
    return ignore.until is not None and ignore.until < today


def _silenced(finding: Finding, index: dict[tuple[str, ...], list[Ignore]]) -> Finding:
    line, name = str(finding.mark.line), finding.object_name
    keys = ((finding.rule, finding.file, line), (finding.rule, finding.file, name))
    covering = [ignore for key in keys for ignore in index.get(key, ()) if ignore.covers(finding)]
    for ignore in covering:
        ignore.used = True
    return replace(finding, suppressed=covering[0].reason) if covering else finding


def _complaint(ignore: Ignore, today: date) -> Iterator[Finding]:
    rules = all_rules()
    if ignore.rule not in rules:
        rule, message = "HF907", f"ignores {ignore.rule or 'nothing'}, which is no rule"
    elif not ignore.reason:
        rule, message = "HF901", f"ignores {ignore.rule} without saying why"
    elif _expired(ignore, today):
        rule, message = "HF903", f"ignored {ignore.rule} until {ignore.until}: {ignore.reason}"
    elif not ignore.used:
        rule, message = "HF902", f"ignores {ignore.rule}, which finds nothing here"
    else:
        return
    known = rules[rule]
    yield Finding(rule, known.severity, message, known.fix, ignore.file, ignore.mark, object_name="")
