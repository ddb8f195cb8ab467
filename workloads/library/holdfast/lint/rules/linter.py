"""HF503 and HF9xx: findings of the engine itself, which have no check; here is their documentation."""

from holdfast.lint.finding import Severity
from holdfast.lint.objects import Object
from holdfast.lint.registry import document

SOURCE = "workloads/manifests/lint"
_JOB = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  labels: {pod-security.kubernetes.io/enforce: restricted}\n"
_BAD_NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}"

document(
    "HF503", "key-twice", Severity.ERROR, on=Object,
    what="A key stands twice in one mapping.",
    why="One of the two values is dropped, and which one depends on the reader.",
    source="https://yaml.org/spec/1.2.2/#3211-nodes", fix="remove one",
    bad=_JOB + "kind: Namespace\n", good=_JOB,
)  # fmt: skip
document(
    "HF901", "ignore-without-reason", Severity.ERROR, on=Object,
    what="An ignore without a reason; it has no effect.",
    why="Nobody can tell later whether it still holds.",
    source=SOURCE, fix="write the reason after the bracket",
    bad=f"{_BAD_NAMESPACE}  # holdfast: ignore[HF412]\n",
    good=f"{_BAD_NAMESPACE}  # holdfast: ignore[HF412] made by another team, until 2999-01-01\n",
)  # fmt: skip
document(
    "HF902", "ignore-unused", Severity.WARNING, on=Object,
    what="An ignore that silences nothing.",
    why="It would hide the next finding of that rule.",
    source=SOURCE, fix="remove it",
    bad=_JOB.replace("kind: Namespace", "kind: Namespace  # holdfast: ignore[HF412] once needed"), good=_JOB,
)  # fmt: skip
document(
    "HF903", "ignore-expired", Severity.ERROR, on=Object,
    what="An ignore past its date; it has no effect any more.",
    why="The date said when the matter was to be mended.",
    source=SOURCE, fix="mend the finding, or set a new date",
    bad=f"{_BAD_NAMESPACE}  # holdfast: ignore[HF412] soon mended, until 2020-01-01\n", good=_JOB,
)  # fmt: skip
document(
    "HF904", "not-yaml", Severity.ERROR, on=Object,
    what="Text that is no YAML, or cannot be read.",
    why="Nothing in it was judged.",
    source=SOURCE, fix="correct the syntax at the place named",
    bad="kind: [Job\n", good=_JOB,
)  # fmt: skip
document(
    "HF905", "template-skipped", Severity.INFO, on=Object,
    what="A Helm chart or another text template.",
    why="It is YAML only after rendering, so nothing in it was judged.",
    source=SOURCE, fix="lint the output of `helm template`",
    bad="kind: Job\n{{- if .Values.x }}\nmetadata: {}\n{{- end }}\n", good=_JOB,
)  # fmt: skip
document(
    "HF906", "too-large", Severity.WARNING, on=Object,
    what="A file larger than a manifest can be.",
    why="The API server takes about 1 MiB for an object; the file was not read.",
    source=SOURCE, fix="split it, or leave it out",
    bad=f"# {'x' * (1 << 20)}\n", good=_JOB,
)  # fmt: skip
document(
    "HF907", "ignore-of-no-rule", Severity.ERROR, on=Object,
    what="An ignore of a rule that does not exist.",
    why="It has no effect.",
    source=SOURCE, fix="`holdfast rules` lists them",
    bad=_JOB.replace("kind: Namespace", "kind: Namespace  # holdfast: ignore[HF999] a reason"), good=_JOB,
)  # fmt: skip
