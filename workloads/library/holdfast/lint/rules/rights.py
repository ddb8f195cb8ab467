"""HF438, HF439: rights on resources that there are, and names of the platform."""

import re
from collections.abc import Iterable, Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_text, dig, find_near
from holdfast.lint.references import ACCOUNT
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from holdfast.vocabulary.roles import JOB_NAMESPACES, JOB_ROLES, KSA_NAMESPACES

DOC_RBAC = "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"
# In several groups, of which one is enough.
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
    known_groups = load_table("resources")
    known_names = {name for names in known_groups.values() for name in names}
    entries = as_list(obj.body.get("rules"))
    allowed = {name for entry in entries for name in _list_allowed(entry)}
    for index, entry in enumerate(entries):
        path: Path = ("rules", index)
        for number, verb in enumerate(as_list(dig(entry, "verbs"))):
            if verb not in load_table("verbs")["names"] and ":" not in str(verb):
                yield Hit((*path, "verbs", number), f"there is no verb {verb}")
        groups = {as_text(group) for group in as_list(dig(entry, "apiGroups"))}
        # A group that is not in the table may have any resource; one right resource is enough.
        if not groups <= known_groups.keys() or any(_list_allowed(entry)):
            continue
        for number, item in enumerate(as_list(dig(entry, "resources"))):
            name = as_text(item).partition("/")[0]
            homes = _list_homes(name)
            plural = find_near(name, known_names, _NEAR)
            if homes and name not in allowed:
                shown = ", ".join(repr(home) for home in homes)
                yield Hit((*path, "resources", number), f"{name} are in the group {shown}")
            elif not homes and plural and _distance(name[:100], plural) < 3:
                message = f"no resource {name}; did you mean {plural}?"
                yield Hit((*path, "resources", number), message)


def _list_allowed(entry: object) -> Iterator[str]:
    """Yields the resources of a rule that its groups have."""
    groups = set(as_list(dig(entry, "apiGroups")))
    for item in as_list(dig(entry, "resources")):
        name = as_text(item).partition("/")[0]
        if name == "*" or "*" in groups or groups & set(_list_homes(name)):
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
    near_name = find_near(name, known_names, _NEAR)
    # Names that differ in a number are several of one kind.
    is_typo = near_name and re.sub(r"\d", "", name) != re.sub(r"\d", "", near_name)
    if is_typo and name not in known_names and _has_one_error(name, near_name):
        yield Hit(path, f"the platform has no {name}; did you mean {near_name}?")


def _has_one_error(name: str, other: str) -> bool:
    """Returns whether two names have the same letters but two at most, and no part more."""
    if name.count("-") != other.count("-"):
        return False
    return (
        abs(len(name) - len(other)) < 2 and sorted(set(name)) != [] and _distance(name, other) < 3
    )


def _distance(name: str, other: str) -> int:
    """Counts the letters that have to be changed, added or removed."""
    row = list(range(len(other) + 1))
    for index, letter in enumerate(name, start=1):
        previous = row
        row = [index]
        for position, other_letter in enumerate(other, start=1):
            change = previous[position - 1] + (letter != other_letter)
            row.append(min(change, previous[position] + 1, row[-1] + 1))
    return row[-1]


def _check_account(obj: Object, context: Context) -> Iterator[Hit]:
    account = as_text(obj.annotations.get(ANNOTATION_GOOGLE_ACCOUNT))
    path = ("metadata", "annotations", ANNOTATION_GOOGLE_ACCOUNT)
    domain = account.partition("@")[2]
    project = domain.partition(".")[0]
    if project and domain.endswith(".gserviceaccount.com"):
        yield from _compare(path, project, [context.platform.project])
        is_of_iam = domain.removeprefix(project).startswith(".iam.")
        if not is_of_iam and project not in ("developer", "appspot", "cloudservices"):
            yield Hit(path, f"{account} is no account: NAME@PROJECT.iam.gserviceaccount.com")


def _check_pod(pod: Pod, context: Context) -> Iterator[Hit]:
    platform = context.platform
    name = pod.account
    is_there = context.index.find(ACCOUNT, name, pod.owner.namespace)
    if name and pod.owner.namespace in platform.job_namespaces and not is_there:
        path = (*pod.spec_path, "serviceAccountName")
        yield from _compare(path, name, JOB_ROLES)
        home = KSA_NAMESPACES.get(name, pod.owner.namespace)
        if pod.owner.namespace in JOB_NAMESPACES and home != pod.owner.namespace:
            yield Hit(path, f"{name} is an account of {home}, not of {pod.owner.namespace}")
    for index, volume in enumerate(as_list(pod.spec.get("volumes"))):
        bucket = as_text(dig(volume, "csi", "volumeAttributes", "bucketName"))
        path = (*pod.spec_path, "volumes", index, "csi", "volumeAttributes", "bucketName")
        yield from _compare(path, bucket, platform.buckets)
    for container in pod.containers:
        image = as_text(container.body.get("image"))
        prefix = "/".join(image[:600].split("/")[: platform.registry.count("/") + 1])
        is_near = find_near(prefix, [platform.registry], 0.9) if platform.registry else ""
        if is_near and prefix != is_near and _distance(prefix, is_near) < 3:
            yield Hit((*container.path, "image"), f"no registry {prefix}; there is {is_near}")
        yield from _check_buckets(container.body, container.path, context)


def _check_buckets(body: object, path: Path, context: Context) -> Iterator[Hit]:
    texts: list[tuple[Path, str]] = []
    for index, item in enumerate(as_list(as_map(body).get("env"))):
        texts.append(((*path, "env", index, "value"), as_text(dig(item, "value"))))
    for key in ("command", "args"):
        for index, word in enumerate(as_list(as_map(body).get(key))):
            texts.append(((*path, key, index), as_text(word)))
    for place, text in texts:
        for bucket in _BUCKET.findall(text[:4_000]):
            yield from _compare(place, bucket, context.platform.buckets)
