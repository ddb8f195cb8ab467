"""HF438, HF439: rights on resources that there are, and names of the platform."""

import re
from collections.abc import Iterable, Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_list, as_text, as_texts, dig
from holdfast.lint.references import ACCOUNT
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import count_differences, find_near, suggest
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from holdfast.vocabulary.roles import JOB_NAMESPACES, JOB_ROLES, KSA_NAMESPACES

DOC_RBAC = "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"
# Resources that several groups have; one of the groups is enough.
_SHARED = {
    "events": ("", "events.k8s.io"),
    "ingresses": ("networking.k8s.io", "extensions"),
    "nodes": ("", "metrics.k8s.io"),
    "pods": ("", "metrics.k8s.io"),
}
_NEAR = 0.8
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])")


def _role(group: str) -> str:
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: starts, namespace: research}}
rules: [{{apiGroups: ['{group}'], resources: [jobs], verbs: [create]}}]
"""


@rule(
    "HF438",
    "right-on-nothing",
    Severity.ERROR,
    on=Object,
    kinds=("Role", "ClusterRole"),
    what="A role allows something on a resource that its API group does not have, or a verb.",
    why="The rule allows nothing: each call of its pods is forbidden.",
    source=DOC_RBAC,
    fix="name resources in the plural with their own group; pods have the group ''",
    bad=_role("apps"),
    good=_role("batch"),
)
def right_on_nothing(obj: Object, context: Context) -> Iterator[Hit]:
    entries = as_list(obj.body.get("rules"))
    allowed: set[str] = set()
    for entry in entries:
        allowed.update(_list_allowed(entry))
    for index, entry in enumerate(entries):
        path: Path = ("rules", index)
        yield from _check_verbs(entry, path)
        has_names = bool(as_list(dig(entry, "resourceNames")))
        # The address of a subresource, as of serviceaccounts/token, holds the name.
        is_plain = any("/" not in as_text(item) for item in as_list(dig(entry, "resources")))
        if has_names and is_plain and "create" in as_list(dig(entry, "verbs")):
            message = "create has no name to compare: this rule does not allow it"
            yield Hit((*path, "resourceNames"), message)
        yield from _check_resources(entry, path, allowed)


def _check_verbs(entry: object, path: Path) -> Iterator[Hit]:
    known_verbs = load_table("verbs")["names"]
    for number, item in enumerate(as_list(dig(entry, "verbs"))):
        verb = str(item)
        if verb not in known_verbs and ":" not in verb:
            yield Hit((*path, "verbs", number), f"there is no verb {verb}")


def _check_resources(entry: object, path: Path, allowed: set[str]) -> Iterator[Hit]:
    """Yields resources of a rule that are in other groups, or that are nearly known ones."""
    known_groups = load_table("resources")
    groups = {as_text(group) for group in as_list(dig(entry, "apiGroups"))}
    # A group that is not in the table may have any resource.
    if not groups <= known_groups.keys():
        return
    # If one resource is in the groups of the rule, those of other groups are no finding.
    is_right = any(_list_allowed(entry))
    known_names: set[str] = set()
    for names in known_groups.values():
        known_names.update(names)
    for number, name in enumerate(_list_resources(entry)):
        resource_path = (*path, "resources", number)
        homes = _list_homes(name)
        if homes and name not in allowed and not is_right:
            shown = ", ".join(repr(home) for home in homes)
            yield Hit(resource_path, f"{name} are in the group {shown}")
        if homes:
            continue
        plural = find_near(name, known_names, _NEAR)
        if plural and count_differences(name[:100], plural) < 3:
            yield Hit(resource_path, f"no resource {name}; did you mean {plural}?")
    yield from _check_parts(entry, path)


def _check_parts(entry: object, path: Path) -> Iterator[Hit]:
    """Yields parts of pods, as pods/logs, that the API does not have."""
    known_parts = load_table("parts")
    for number, item in enumerate(as_list(dig(entry, "resources"))):
        name, slash, part = as_text(item).partition("/")
        if slash and name in known_parts and part not in (*known_parts[name], "*", "finalizers"):
            message = f"{name} have no {part}{suggest(part, known_parts[name])}"
            yield Hit((*path, "resources", number), message)


def _list_resources(entry: object) -> Iterator[str]:
    """Yields the resources of a rule, without the part after a slash."""
    for item in as_list(dig(entry, "resources")):
        yield as_text(item).partition("/")[0]


def _list_allowed(entry: object) -> Iterator[str]:
    """Yields the resources of a rule that its groups have."""
    groups = set(as_texts(dig(entry, "apiGroups")))
    for name in _list_resources(entry):
        has_any_name = name == "*" or "*" in groups
        if has_any_name or groups.intersection(_list_homes(name)):
            yield name


def _list_homes(name: str) -> list[str]:
    """Lists the groups that have a resource."""
    homes = list(_SHARED.get(name, ()))
    for group, names in load_table("resources").items():
        if name in names and group not in homes:
            homes.append(group)
    return homes


@rule(
    "HF439",
    "name-not-of-the-platform",
    Severity.ERROR,
    on=Object,
    what="An account, a namespace, a bucket or a registry is nearly one of the platform's.",
    why="Nothing of that name exists: the object is refused, or the pod has no data or rights.",
    source="the platform document",
    fix="write the platform's name",
    base="job-pod",
    bad="serviceAccountName: trianer",
    good="serviceAccountName: trainer",
)
def compare_platform_names(obj: Object, context: Context) -> Iterator[Hit]:
    platform = context.platform
    namespaces = (*platform.namespaces, *platform.job_namespaces)
    if obj.namespace and not context.index.find("Namespace", obj.namespace):
        yield from _compare(("metadata", "namespace"), obj.namespace, namespaces)
    if obj.kind == ACCOUNT:
        yield from _check_account(obj, context)
    for pod in obj.pods:
        yield from _check_pod(pod, context)


def _compare(path: Path, name: str, names: Iterable[str]) -> Iterator[Hit]:
    known_names = sorted(set(names))
    if name in known_names:
        return
    near_name = find_near(name, known_names, _NEAR)
    if not near_name:
        return
    # Names that differ in a number are several of one kind.
    is_other_number = _drop_digits(name) == _drop_digits(near_name)
    if not is_other_number and _has_one_error(name, near_name):
        yield Hit(path, f"the platform has no {name}; did you mean {near_name}?")


def _drop_digits(name: str) -> str:
    return re.sub(r"\d", "", name)


def _has_one_error(name: str, other: str) -> bool:
    """Returns whether two names have as many parts and differ in two letters at most."""
    if not name:
        return False
    if name.count("-") != other.count("-"):
        return False
    difference = len(name) - len(other)
    return abs(difference) < 2 and count_differences(name, other) < 3


def _check_account(obj: Object, context: Context) -> Iterator[Hit]:
    account = as_text(obj.annotations.get(ANNOTATION_GOOGLE_ACCOUNT))
    path = ("metadata", "annotations", ANNOTATION_GOOGLE_ACCOUNT)
    domain = account.partition("@")[2]
    project = domain.partition(".")[0]
    if not project or not domain.endswith(".gserviceaccount.com"):
        return
    yield from _compare(path, project, [context.platform.project])
    is_in_iam = domain.removeprefix(project).startswith(".iam.")
    is_by_google = project in ("developer", "appspot", "cloudservices")
    if not is_in_iam and not is_by_google:
        yield Hit(path, f"{account} is no account: NAME@PROJECT.iam.gserviceaccount.com")


def _check_pod(pod: Pod, context: Context) -> Iterator[Hit]:
    platform = context.platform
    name = pod.account
    namespace = pod.owner.namespace
    is_there = context.index.find(ACCOUNT, name, namespace)
    if name and namespace in platform.job_namespaces and not is_there:
        path = (*pod.spec_path, "serviceAccountName")
        yield from _compare(path, name, JOB_ROLES)
        home = KSA_NAMESPACES.get(name, namespace)
        if namespace in JOB_NAMESPACES and home != namespace:
            yield Hit(path, f"{name} is an account of {home}, not of {namespace}")
    fields = ("csi", "volumeAttributes", "bucketName")
    for path, volume in pod.volumes:
        bucket = as_text(dig(volume, *fields))
        yield from _compare((*path, *fields), bucket, platform.buckets)
    for container in pod.containers:
        if platform.registry:
            image = as_text(container.body.get("image"))
            path = (*container.path, "image")
            yield from _check_image(image, path, platform.registry)
        for path, text in container.list_texts():
            for bucket in _BUCKET.findall(text[:4_000]):
                yield from _compare(path, bucket, platform.buckets)


def _check_image(image: str, path: Path, registry: str) -> Iterator[Hit]:
    parts = image[:600].split("/")
    depth = registry.count("/") + 1
    prefix = "/".join(parts[:depth])
    if prefix == registry or not find_near(prefix, [registry], 0.9):
        return
    if count_differences(prefix, registry) < 3:
        yield Hit(path, f"no registry {prefix}; there is {registry}")
