"""Findings that a team accepts: by comment or by annotation.

Each needs a reason. An ignore that silences nothing or has no reason is a finding itself, so that
the list of exceptions stays true.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.lint.document import Mark
from holdfast.lint.finding import Finding
from holdfast.lint.objects import Object, as_map, as_text, dig
from holdfast.lint.registry import all_rules

ANNOTATION = "holdfast.dev/ignore-"
_COMMENT = re.compile(r"#\s*holdfast:\s*ignore\[([^\]]{0,200})\]\s*(.*)$")


@dataclass(eq=False)
class Ignore:
    rule: str
    reason: str
    file: str
    """Where the ignore itself is, with `mark`."""
    mark: Mark
    covers: str
    """Of the same file: the number of a line, or the title of an object."""
    used: bool = False


def of_comments(file: str, text: str) -> list[Ignore]:
    """`# holdfast: ignore[HF101] reason`, for its own line or, on a line of its own, for the next
    one.
    """
    if "holdfast:" not in text:
        return []
    found: list[Ignore] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _COMMENT.search(line)
        if not match:
            continue
        alone = line.lstrip().startswith("#")
        mark = Mark(number, match.start() + 1, match.end() + 1)
        for rule in match.group(1).split(","):
            found.append(
                Ignore(rule.strip(), match.group(2).strip(), file, mark, str(number + alone))
            )
    return found


def of_annotations(obj: Object) -> Iterator[Ignore]:
    """`holdfast.dev/ignore-HF101: reason` on the object or on a pod template of it."""
    places = [((), obj.body), *((pod.path, pod.template) for pod in obj.pods if pod.path)]
    for path, body in places:
        for key, value in as_map(dig(body, "metadata", "annotations")).items():
            if key.startswith(ANNOTATION):
                mark = obj.document.at((*obj.root, *path, "metadata", "annotations", key))
                rule = key.removeprefix(ANNOTATION)
                yield Ignore(rule, as_text(value).strip(), obj.file, mark, obj.title)


def apply(ignores: list[Ignore], findings: list[Finding]) -> list[Finding]:
    """The findings, the silenced ones marked with the reason, and one finding for each bad ignore."""
    index: dict[tuple[str, ...], list[Ignore]] = defaultdict(list)
    for ignore in ignores:
        if ignore.reason:
            index[ignore.rule, ignore.file, ignore.covers].append(ignore)
    judged = [_silenced(finding, index) for finding in findings]
    return [*judged, *(bad for ignore in ignores for bad in _complaint(ignore))]


def _silenced(finding: Finding, index: dict[tuple[str, ...], list[Ignore]]) -> Finding:
    places = (str(finding.mark.line), finding.object_name)
    covering = [
        ignore for place in places for ignore in index.get((finding.rule, finding.file, place), ())
    ]
    for ignore in covering:
        ignore.used = True
    return replace(finding, suppressed=covering[0].reason) if covering else finding


def _complaint(ignore: Ignore) -> Iterator[Finding]:
    rules = all_rules()
    if ignore.rule not in rules:
        rule, message = "HF907", f"ignores {ignore.rule or 'nothing'}, which is no rule"
    elif not ignore.reason:
        rule, message = "HF901", f"ignores {ignore.rule} without saying why"
    elif not ignore.used:
        rule, message = "HF902", f"ignores {ignore.rule}, which finds nothing here"
    else:
        return
    yield rules[rule].finding(message, ignore.file, ignore.mark)
