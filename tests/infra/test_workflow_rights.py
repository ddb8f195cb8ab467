"""The accounts of workflows hold every permission that a refresh and an apply of their own
environment need, as permissions.toml has them.
"""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from infra.environments.schema import Environment
from infra.specs import Resource
from infra.specs import resources as specified
from monitoring.stack import resources as monitoring
from tests.infra.samples import DELIVERY, make_hardened, make_shared_network
from tests.plan.inventory import FOLDER, load_inventory

TABLE = tomllib.loads(Path(__file__).with_name("permissions.toml").read_text())
NEEDS = TABLE["needs"]
# Roles on a billing account are given by hand: a project cannot grant them (upgrading.md says so).
BY_HAND = "billing account"
PROJECT = "projects/{}"

Right = tuple[str, str]
"""A permission and the object on which it is needed or held."""


def list_resources(environment: Environment) -> list[Resource]:
    return [*specified(environment), *monitoring(environment)]


def find_target(resource: Resource, default: str) -> str:
    """Return the object that a resource is, or is in: a key, a subnet, a project."""
    arguments = resource.arguments
    key = arguments.get("crypto_key_id")
    if key:
        return str(key)
    project = PROJECT.format(arguments.get("project", default))
    if resource.kind == "google_compute_subnetwork_iam_member":
        return f"{project}/regions/{arguments['region']}/subnetworks/{arguments['subnetwork']}"
    return project


def list_needed(environment: Environment, *phases: str) -> set[Right]:
    rights: set[Right] = set()
    for resource in list_resources(environment):
        if not resource.kind.startswith("google_"):
            continue
        need = NEEDS[resource.kind]
        if need.get("at") != BY_HAND:
            on = find_target(resource, environment.project)
            for phase in phases:
                rights |= {(permission, on) for permission in need[phase]}
    return rights


def list_held(environment: Environment, role: str) -> set[Right]:
    """Return what the account may do by its grants, each on its object."""
    rights: set[Right] = set()
    for resource in list_resources(environment):
        if resource.arguments.get("member") == environment.member(role):
            on = find_target(resource, environment.project)
            permissions = TABLE["roles"].get(resource.arguments["role"], ())
            rights |= {(permission, on) for permission in permissions}
    return rights


def find_missing(environment: Environment, role: str, *phases: str) -> list[Right]:
    rights = list_held(environment, role)
    lacks = []
    for permission, on in list_needed(environment, *phases):
        # What holds on a project holds on everything in it.
        parents = {on, "/".join(on.split("/")[:2])}
        if not any((permission, place) in rights for place in parents):
            lacks.append((permission, on))
    return sorted(lacks)


def make_shared_production() -> Environment:
    """Production in a Shared VPC whose grants the environment writes, with queues on Pub/Sub."""
    environment = make_hardened()
    existing = make_shared_network().network
    return replace(
        environment,
        network=replace(existing, authorized_ranges=environment.network.authorized_ranges),
        queue=replace(environment.queue, lanes=2),
    )


ENVIRONMENTS = {
    "production": make_hardened(),
    "shared VPC": make_shared_production(),
    "trial": replace(
        make_hardened(),
        production=False,
        database=None,
        delivery=DELIVERY,
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_planner_may_refresh_and_deployer_may_apply_every_resource(name: str) -> None:
    environment = ENVIRONMENTS[name]
    assert find_missing(environment, "planner", "refresh") == []
    assert find_missing(environment, "deployer", "refresh", "apply") == []


def test_a_role_less_is_found() -> None:
    """The computation itself finds what the first refresh of production would answer with 403."""
    environment = replace(make_hardened(), security=replace(make_hardened().security, kms_key=""))
    key = make_hardened().security.kms_key
    keyless = list_held(environment, "deployer")
    rights = {right for right in list_needed(make_hardened(), "refresh") if right not in keyless}
    assert rights == {("cloudkms.cryptoKeys.getIamPolicy", key)}


def test_the_planner_gets_no_permission_to_change() -> None:
    changing = ("create", "update", "delete", "setIamPolicy", "enable", "actAs", "use")
    for permission, on in list_held(make_shared_production(), "planner"):
        assert not permission.endswith(changing), (permission, on)


def test_the_deployer_grants_one_role_in_a_host_project() -> None:
    environment = make_shared_production()
    host = []
    for resource in list_resources(environment):
        if (
            resource.kind == "google_project_iam_member"
            and resource.arguments["member"] == environment.member("deployer")
            and resource.arguments["project"] != environment.project
        ):
            host.append(resource)
    (grant,) = host
    assert "hasOnly(['roles/container.hostServiceAgentUser'])" in json.dumps(
        grant.arguments["condition"]
    )


def test_the_table_has_every_kind_that_is_planned() -> None:
    """Those of the recorded plans, and those of features that they leave out."""
    kinds = set()
    for folder in FOLDER.iterdir():
        for file in folder.glob("*.yaml"):
            kinds |= {address.split(".")[0] for address in load_inventory(folder.name, file.stem)}
    for environment in ENVIRONMENTS.values():
        kinds |= {resource.kind for resource in list_resources(environment)}
    assert {kind for kind in kinds if kind.startswith("google_")} <= set(NEEDS)
