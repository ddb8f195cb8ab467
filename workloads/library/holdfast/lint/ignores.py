"""Findings that a team accepts, by comment or by annotation.

Each ignore needs a reason. One that silences nothing or has no reason is a finding itself, so that
the list of exceptions stays true.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.lint.document import Mark, Path
from holdfast.lint.finding import Finding
from holdfast.lint.objects import Object, as_map, as_text, dig
from holdfast.lint.registry import all_rules

ANNOTATION = "holdfast.dev/ignore-"
_COMMENT = re.compile(r"#\s*holdfast:\s*ignore\[([^\]]{0,200})\]\s*(.*)$")
_IgnoreIndex = dict[tuple[str, ...], list["Ignore"]]


@dataclass(eq=False)
class Ignore:
    rule: str
    reason: str
    file: str
    mark: Mark
    """Position of the ignore itself in the file."""
    covers: str
    """Number of a line of the same file, or title of an object in it."""
    used: bool = False


def parse_comments(file: str, text: str) -> list[Ignore]:
    """Reads `# holdfast: ignore[HF101] reason`.

    It covers its own line or, on a line without anything else, the next one.
    """
    ignores: list[Ignore] = []
    if "holdfast:" not in text:
        return ignores
    for number, line in enumerate(text.splitlines(), start=1):
        match = _COMMENT.search(line)
        if not match:
            continue
        is_alone = line.lstrip().startswith("#")
        target = number + 1 if is_alone else number
        mark = Mark(number, match.start() + 1, match.end() + 1)
        reason = match.group(2).strip()
        for rule in match.group(1).split(","):
            ignores.append(Ignore(rule.strip(), reason, file, mark, str(target)))
    return ignores


def parse_annotations(obj: Object) -> Iterator[Ignore]:
    """Reads `holdfast.dev/ignore-HF101: reason` of the object and of its pod templates."""
    bodies: list[tuple[Path, dict[str, Any]]] = [((), obj.body)]
    for pod in obj.pods:
        if pod.path:
            bodies.append((pod.path, pod.template))
    for path, body in bodies:
        annotations_path = (*obj.root, *path, "metadata", "annotations")
        for key, value in as_map(dig(body, "metadata", "annotations")).items():
            if key.startswith(ANNOTATION):
                mark = obj.document.locate((*annotations_path, key))
                rule = key.removeprefix(ANNOTATION)
                reason = as_text(value).strip()
                yield Ignore(rule, reason, obj.file, mark, obj.title)


def apply(ignores: list[Ignore], findings: list[Finding]) -> list[Finding]:
    """Marks the silenced findings with the reason and adds one finding for each bad ignore."""
    index: _IgnoreIndex = defaultdict(list)
    for ignore in ignores:
        if ignore.reason:
            index[ignore.rule, ignore.file, ignore.covers].append(ignore)
    results = [_silence(finding, index) for finding in findings]
    for ignore in ignores:
        results.extend(_check(ignore))
    return results


def _silence(finding: Finding, index: _IgnoreIndex) -> Finding:
    matches: list[Ignore] = []
    for target in (str(finding.mark.line), finding.object_name):
        matches += index.get((finding.rule, finding.file, target), ())
    for ignore in matches:
        ignore.used = True
    return replace(finding, suppressed=matches[0].reason) if matches else finding


def _check(ignore: Ignore) -> Iterator[Finding]:
    rules = all_rules()
    if ignore.rule not in rules:
        rule = "HF907"
        message = f"ignores {ignore.rule or 'nothing'}, which is no rule"
    elif not ignore.reason:
        rule = "HF901"
        message = f"ignores {ignore.rule} without saying why"
    elif not ignore.used:
        rule = "HF902"
        message = f"ignores {ignore.rule}, which finds nothing here"
    else:
        return
    yield rules[rule].finding(message, ignore.file, ignore.mark)
