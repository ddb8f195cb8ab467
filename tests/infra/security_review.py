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
from tests.infra.samples import DELIVERY, hardened, two_teams
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
    environment = hardened()
    team = two_teams().teams[0]
    return replace(
        environment,
        teams=(team,),
        budget=two_teams().budget,
        delivery=DELIVERY,
        storage=replace(environment.storage, runs=two_teams().storage.runs),
        queue=replace(environment.queue, lanes=1),
    )


def make_tables(environment: Environment) -> dict[str, str]:
    """Return name of a table in the page -> its Markdown."""
    planned = resources(environment)
    objects = list(platform(RenderContext(describe.platform(environment, {}))))
    return {
        "grants": _format(("who", "role", "on"), _list_grants(environment, planned)),
        "accounts": _format(("account", "used by"), _list_users(environment, planned)),
        "rights": _format(("who", "where", "may"), _list_rights(objects)),
        "apis": " ".join(f"`{name}.googleapis.com`" for name in sorted(apis(environment))),
        "locations": " ".join(f"`{place}`" for place in list_locations(planned)),
    }


def _format(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


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
        is_grant = resource.kind.endswith("_iam_member")
        if is_grant and not resource.kind.startswith("google_service_account"):
            member = name_member(environment, str(resource.arguments["member"]))
            target = _name_target(environment, resource)
            role = str(resource.arguments["role"]).removeprefix("roles/")
            roles.setdefault((member, target), []).append(f"`{role}`")
    for (member, target), granted in sorted(roles.items()):
        yield member, ", ".join(sorted(granted)), target


def _list_users(environment: Environment, planned: Iterable[Resource]) -> Iterator[tuple[str, str]]:
    users: dict[str, set[str]] = {}
    for resource in planned:
        if resource.kind == "google_service_account_iam_member":
            account = str(resource.arguments["service_account_id"]).rpartition("/")[2]
            role = name_member(environment, f"serviceAccount:{account}")
            member = name_member(environment, str(resource.arguments["member"]))
            users.setdefault(role, set()).add(member)
    for role, members in sorted(users.items()):
        yield role, ", ".join(sorted(members))


def name_member(environment: Environment, member: str) -> str:
    """Return what a reader calls a member of a grant."""
    account = re.fullmatch(
        rf"serviceAccount:{environment.stem}-(.+)@{environment.project}\.iam\..*", member
    )
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
        return f"pods of `{identity[1]}/{identity[2]}`"
    if "/attribute.repository_id/" in member:
        return "workflows of the repository"
    if "/subject/repo:" in member:
        return f"workflows at the gate `{member.rpartition(':')[2]}`"
    return f"`{member}`"


def _name_target(environment: Environment, resource: Resource) -> str:
    arguments = resource.arguments
    condition: Any = arguments.get("condition") or {}
    target = "the project"
    for name in ("bucket", "crypto_key_id", "repository", "subscription", "topic"):
        if name in arguments:
            value = str(arguments[name])
            words = {
                "bucket": _name_bucket(environment, value),
                "crypto_key_id": "the key",
                "repository": "the image registry",
                "subscription": f"subscription `{value}`",
                "topic": f"topic `{value}`",
            }
            target = words[name]
    if resource.kind.startswith("google_logging_log_view"):
        target = "the output of containers"
    prefixes = PREFIX.findall(str(condition.get("expression", "")))
    if prefixes:
        return f"{target}, below {' '.join(f'`{prefix}`' for prefix in prefixes)}"
    return f"{target}, {condition['title']}" if condition else target


def _name_bucket(environment: Environment, bucket: str) -> str:
    if bucket == environment.state_bucket:
        return "the bucket of the state"
    purpose = bucket.removeprefix(f"{environment.project}-{environment.stem}-")
    return f"bucket `{purpose}`"


def _list_rights(objects: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    bodies = list(objects)
    rules: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for body in bodies:
        if body["kind"] in ("Role", "ClusterRole"):
            meta = body["metadata"]
            rules[body["kind"], meta.get("namespace", ""), meta["name"]] = body["rules"]
    rows: set[tuple[str, str, str]] = set()
    for body in bodies:
        if body["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace = body["metadata"].get("namespace", "")
        role = body["roleRef"]
        place = namespace if role["kind"] == "Role" else ""
        named = rules.get((role["kind"], place, role["name"]))
        may = _name_rules(named) if named else f"role `{role['name']}`"
        for subject in body["subjects"]:
            rows.add(
                (
                    _name_subject(subject),
                    f"`{namespace}`" if namespace else "everywhere",
                    may,
                )
            )
    yield from sorted(rows)


def _name_subject(subject: dict[str, Any]) -> str:
    if subject["kind"] == "Group":
        return f"people of `{subject['name']}`"
    return f"pods of `{subject['namespace']}/{subject['name']}`"


def _name_rules(rules: Iterable[dict[str, Any]]) -> str:
    """Return what the rules of a role allow, the kinds with the same verbs together."""
    things: dict[str, list[str]] = {}
    for rule in rules:
        names = rule.get("resourceNames")
        only = f" named {' '.join(names)}" if names else ""
        verbs = ", ".join(rule["verbs"])
        things.setdefault(verbs, []).append(", ".join(rule["resources"]) + only)
    return "; ".join(f"{verbs}: {', '.join(kinds)}" for verbs, kinds in sorted(things.items()))


def write(text: str) -> str:
    """Return the page with its tables computed again."""
    for name, table in make_tables(make_environment()).items():
        begin = f"<!-- {name}: written by `{REGENERATE}` -->"
        end = f"<!-- end of {name} -->"
        assert begin in text and end in text, f"the page has no place for {name}"
        before = text.partition(begin)[0]
        after = text.partition(end)[2]
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
