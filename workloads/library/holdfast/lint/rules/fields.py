"""HF501: fields that no Kubernetes object has."""

from collections.abc import Iterator

from holdfast.lint import api_fields
from holdfast.lint.api_fields import UnknownField
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near

DOC = "https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation"


@rule(
    "HF501",
    "unknown-field",
    Severity.ERROR,
    on=Object,
    what="A field that Kubernetes does not know at this place: misspelt, or at the wrong depth.",
    why=(
        "The API server drops it, many clients without a word, and what it should have set keeps"
        " its default: no grace period, no limit, no affinity."
    ),
    source=DOC,
    fix="correct its name, or move it to where it belongs",
    base="job",
    bad="""\
spec: {template: {spec: {terminationGracePeriod: 15}}}
""",
)
def unknown_field(obj: Object, context: Context) -> Iterator[Hit]:
    unknown_fields: dict[object, UnknownField] = {}
    type_name = api_fields.find_type(as_text(obj.body.get("apiVersion")), obj.kind)
    if type_name:
        for field in api_fields.find_unknown_fields(obj.body, type_name):
            unknown_fields[field.path] = field
    else:
        # An object of another API has templates of Kubernetes' own types.
        for job in obj.jobs:
            for field in api_fields.find_unknown_fields(job.spec, api_fields.JOB_SPEC, job.path):
                unknown_fields[field.path] = field
        for pod in obj.pods:
            template = pod.template
            for field in api_fields.find_unknown_fields(
                template, api_fields.POD_TEMPLATE, pod.path
            ):
                unknown_fields[field.path] = field
    for field in unknown_fields.values():
        yield Hit(
            field.path,
            f"no such field: {field.name}",
            fix=_fix(field),
            on_key=True,
        )


def _fix(field: UnknownField) -> str:
    near_name = find_near(field.name, field.known_names, 0.75)
    if near_name:
        return f"did you mean {near_name}?"
    if field.home:
        return f"it belongs to {field.home}"
    return ""
