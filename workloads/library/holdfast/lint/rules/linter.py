"""HF503 and HF9xx: findings of the engine itself, which have no check but are documented here."""

from holdfast.lint.document import MAX_FILE_BYTES
from holdfast.lint.finding import Severity
from holdfast.lint.objects import Object
from holdfast.lint.registry import rule

SOURCE = "the linter's reference page"
_GOOD = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n"
_CLASS = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot}\n"
_POSITIVE = f"{_CLASS}value: 5  # holdfast: ignore"


def _document(
    rule_id: str,
    slug: str,
    severity: Severity,
    problem: str,
    reason: str,
    fix: str,
    bad: str,
    good: str = _GOOD,
) -> None:
    rule(
        rule_id,
        slug,
        severity,
        on=Object,
        what=problem,
        why=reason,
        source=SOURCE,
        fix=fix,
        bad=bad,
        good=good,
    )(None)  # pyright: ignore[reportArgumentType]


_document(
    "HF503",
    "key-twice",
    Severity.ERROR,
    "A mapping has the same key twice.",
    "One of the two values is dropped, and which one depends on the reader.",
    "remove one",
    _GOOD + "kind: Namespace\n",
)
_document(
    "HF901",
    "ignore-without-reason",
    Severity.ERROR,
    "An ignore has no reason, and so no effect.",
    "Later it cannot be judged whether it is still right.",
    "write the reason after the bracket",
    f"{_POSITIVE}[HF305]\n",
    f"{_POSITIVE}[HF305] made by another team\n",
)
_document(
    "HF902",
    "ignore-unused",
    Severity.WARNING,
    "An ignore silences nothing.",
    "It would hide the next finding of that rule.",
    "remove it",
    _GOOD.replace("kind: Namespace", "kind: Namespace  # holdfast: ignore[HF305] once needed"),
)
_document(
    "HF904",
    "not-yaml",
    Severity.ERROR,
    "The text is no YAML, or cannot be read.",
    "The linter judged nothing in it.",
    "correct the syntax at the place named",
    "kind: [Job\n",
)
_document(
    "HF905",
    "template-skipped",
    Severity.INFO,
    "The file is a Helm chart or another text template.",
    "It is YAML only after rendering, so the linter judged nothing in it.",
    "lint the output of `helm template`",
    "kind: Job\n{{- if .Values.x }}\nmetadata: {}\n{{- end }}\n",
)
_document(
    "HF906",
    "too-large",
    Severity.WARNING,
    "The file is larger than a manifest can be.",
    "The API server takes about 1 MiB for an object; the linter did not read the file.",
    "split it, or leave it out",
    f"# {'x' * MAX_FILE_BYTES}\n",
)
_document(
    "HF907",
    "ignore-of-no-rule",
    Severity.ERROR,
    "An ignore names a rule that does not exist.",
    "It has no effect.",
    "`holdfast lint --rule all` lists them",
    _GOOD.replace("kind: Namespace", "kind: Namespace  # holdfast: ignore[HF999] a reason"),
)
