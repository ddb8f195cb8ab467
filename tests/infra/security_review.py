"""`python -m tests.infra.security_review` writes the tables of the page for security reviews.

They are computed from a hardened environment with one team, workflows and queues: the grants from
the resources that it deploys, the rights in the cluster from the objects that it renders.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.manifests.render_context import RenderContext
from infra import describe
from infra.environments.schema import Environment
from infra.specs import Resource, resources
from infra.specs.network import apis
from tests.infra.samples import DELIVERY, make_hardened, two_teams
from workloads.manifests.rendering import platform

PAGE = Path(__file__).parents[2] / "infra" / "docs" / "reference" / "security-review.md"
REGENERATE = "python -m tests.infra.security_review"
# A service agent's name after `service-NUMBER@`, without the common end.
AGENT = re.compile(r"serviceAccount:service-\d+@(.+)\.iam\.gserviceaccount\.com")
POD = re.compile(r"serviceAccount:[^\[]+\[([^/]+/[^\]]+)\]")
IDENTITY = re.compile(r"principal://.*/subject/ns/([^/]+)/sa/(.+)")
NAMESPACE = re.compile(r"principalSet://.*/namespace/(.+)")
PREFIX = re.compile(r"objects/([^\"]+)")


def make_environment() -> Environment:
    environment = make_hardened()
    team = two_teams().teams[0]
    return replace(
        environment,
        teams=(team,),
        budget=two_teams().budget,
        delivery=DELIVERY,
        storage=replace(environment.storage, runs=two_teams().storage.runs),
        queue=replace(environment.queue, lanes=1),
        security=replace(environment.security, ratings_every_s=1_800),
    )


def make_tables(environment: Environment) -> dict[str, str]:
    """Return name of a table in the page -> its Markdown."""
    planned = resources(environment)
    objects = list(platform(RenderContext(describe.platform(environment, {}))))
    grants = _list_grants(environment, planned)
    users = _list_users(environment, planned)
    rights = _list_rights(objects)
    hosts = [f"{name}.googleapis.com" for name in sorted(apis(environment))]
    return {
        "grants": _format(("who", "role", "on"), grants),
        "accounts": _format(("account", "used by"), users),
        "rights": _format(("who", "where", "may"), rights),
        "apis": _quote_all(hosts),
        "locations": _quote_all(list_locations(planned)),
    }


def _quote_all(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def _format(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rule = "---|" * len(head)
    lines = [_format_row(head), f"|{rule}"]
    lines += map(_format_row, rows)
    return "\n".join(lines)


def _format_row(row: tuple[str, ...]) -> str:
    cells = " | ".join(row)
    return f"| {cells} |"


def list_locations(planned: Iterable[Resource]) -> list[str]:
    places: set[str] = set()
    for resource in planned:
        for name in ("location", "region"):
            place = resource.arguments.get(name)
            if place:
                places.add(str(place).lower())
    return sorted(places)


def _list_grants(
    environment: Environment, planned: Iterable[Resource]
) -> Iterator[tuple[str, str, str]]:
    roles: dict[tuple[str, str], list[str]] = {}
    for resource in planned:
        if not resource.kind.endswith("_iam_member"):
            continue
        if resource.kind.startswith("google_service_account"):
            continue
        member = _name_grantee(environment, resource)
        target = _name_target(environment, resource)
        role = str(resource.arguments["role"]).removeprefix("roles/")
        roles_on_target = roles.setdefault((member, target), [])
        roles_on_target.append(f"`{role}`")
    for (member, target), granted_roles in sorted(roles.items()):
        shown = ", ".join(sorted(granted_roles))
        yield member, shown, target


def _list_users(environment: Environment, planned: Iterable[Resource]) -> Iterator[tuple[str, str]]:
    users: dict[str, set[str]] = {}
    for resource in planned:
        if resource.kind != "google_service_account_iam_member":
            continue
        account_id = str(resource.arguments["service_account_id"])
        account = account_id.rpartition("/")[2]
        role = name_member(environment, f"serviceAccount:{account}")
        users_of_role = users.setdefault(role, set())
        users_of_role.add(_name_grantee(environment, resource))
    for role, members in sorted(users.items()):
        shown = ", ".join(sorted(members))
        yield role, shown


def _name_grantee(environment: Environment, resource: Resource) -> str:
    member = str(resource.arguments["member"])
    return name_member(environment, member)


def name_member(environment: Environment, member: str) -> str:
    """Return what a reader calls a member of a grant."""
    address = rf"{environment.stem}-(.+)@{environment.project}\.iam\..*"
    account = re.fullmatch(f"serviceAccount:{address}", member)
    if account:
        return f"account `{account[1]}`"
    if "_project_sink" in member:
        return "Cloud Logging's sink"
    for pattern, words in (
        (AGENT, "Google's agent"),
        (POD, "pods of"),
        (NAMESPACE, "all pods of"),
    ):
        match = pattern.fullmatch(member)
        if match:
            return f"{words} `{match[1]}`"
    identity = IDENTITY.fullmatch(member)
    if identity:
        namespace, name = identity.groups()
        return f"pods of `{namespace}/{name}`"
    if "/attribute.repository_id/" in member:
        return "workflows of the repository"
    if "/subject/repo:" in member:
        gate = member.rpartition(":")[2]
        return f"workflows at the gate `{gate}`"
    return f"`{member}`"


def _name_target(environment: Environment, resource: Resource) -> str:
    target = _name_place(environment, resource)
    condition: Any = resource.arguments.get("condition")
    if not condition:
        return target
    expression = str(condition.get("expression", ""))
    prefixes = PREFIX.findall(expression)
    if prefixes:
        return f"{target}, below {_quote_all(prefixes)}"
    title = condition["title"]
    return f"{target}, {title}"


def _name_place(environment: Environment, resource: Resource) -> str:
    arguments = resource.arguments
    if resource.kind.startswith("google_logging_log_view"):
        return "the output of containers"
    for name in ("topic", "subscription"):
        if name in arguments:
            return f"{name} `{arguments[name]}`"
    if "repository" in arguments:
        return "the image registry"
    if "crypto_key_id" in arguments:
        return "the key"
    if "bucket" in arguments:
        return _name_bucket(environment, str(arguments["bucket"]))
    return "the project"


def _name_bucket(environment: Environment, bucket: str) -> str:
    if bucket == environment.state_bucket:
        return "the bucket of the state"
    purpose = bucket.removeprefix(f"{environment.project}-{environment.stem}-")
    return f"bucket `{purpose}`"


def _list_rights(objects: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    bodies = list(objects)
    rules: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for body in bodies:
        kind = body["kind"]
        if kind in ("Role", "ClusterRole"):
            meta = body["metadata"]
            namespace = meta.get("namespace", "")
            rules[kind, namespace, meta["name"]] = body["rules"]
    rows: set[tuple[str, str, str]] = set()
    for body in bodies:
        if body["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace = body["metadata"].get("namespace", "")
        role = body["roleRef"]
        place = namespace if role["kind"] == "Role" else ""
        role_name = role["name"]
        rules_of_role = rules.get((role["kind"], place, role_name))
        may = _name_rules(rules_of_role) if rules_of_role else f"role `{role_name}`"
        scope = f"`{namespace}`" if namespace else "everywhere"
        for subject in body["subjects"]:
            grantee = _name_subject(subject)
            rows.add((grantee, scope, may))
    yield from sorted(rows)


def _name_subject(subject: dict[str, Any]) -> str:
    name = subject["name"]
    if subject["kind"] == "Group":
        return f"people of `{name}`"
    namespace = subject["namespace"]
    return f"pods of `{namespace}/{name}`"


def _name_rules(rules: Iterable[dict[str, Any]]) -> str:
    """Return what the rules of a role allow, the kinds with the same verbs together."""
    things: dict[str, list[str]] = {}
    for rule in rules:
        kinds = ", ".join(rule["resources"])
        names = rule.get("resourceNames")
        if names:
            kinds += " named " + " ".join(names)
        verbs = ", ".join(rule["verbs"])
        things.setdefault(verbs, []).append(kinds)
    parts: list[str] = []
    for verbs, kinds_of_verbs in sorted(things.items()):
        shown = ", ".join(kinds_of_verbs)
        parts.append(f"{verbs}: {shown}")
    return "; ".join(parts)


def write(text: str) -> str:
    """Return the page with its tables computed again."""
    for name, table in make_tables(make_environment()).items():
        begin = f"<!-- {name}: written by `{REGENERATE}` -->"
        end = f"<!-- end of {name} -->"
        assert begin in text, f"the page has no place for {name}"
        assert end in text, f"the page has no place for {name}"
        before = text.partition(begin)[0]
        after = text.partition(end)[2]
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
