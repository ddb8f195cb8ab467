"""Before and after: every kind of resource has its API, and what cannot be deleted at once is left behind."""

from infra.environments import load, names
from infra.rules.order import API_OF_KIND, SERVICE
from infra.specs import resources
from infra.specs.resource import Resource
from tests.infra.samples import EXAMPLE, hardened


def of_kind(kind: str) -> list[Resource]:
    return [resource for resource in resources(EXAMPLE) if resource.kind == kind]


def test_the_rule_about_apis_knows_every_kind_that_is_planned() -> None:
    """A kind that it does not know would pass in any order."""
    environments = (EXAMPLE, hardened(), *map(load, names()))
    kinds = {resource.kind for environment in environments for resource in resources(environment)}
    unknown = {kind for kind in kinds if not kind.startswith(tuple(API_OF_KIND))}
    assert unknown == {SERVICE, "terraform_data"}


def test_a_trial_goes_without_what_google_would_not_delete() -> None:
    """A user who owns tables, a database with open connections, a peering that Cloud SQL holds for hours."""
    kept = [r for kind in ("google_sql_user", "google_sql_database") for r in of_kind(kind)]
    [peering] = of_kind("google_service_networking_connection")
    assert {r.arguments["deletion_policy"] for r in (*kept, peering)} == {"ABANDON"} and len(kept) > 2
    assert peering.arguments["update_on_creation_fail"] is True, "it is still there at the next deployment"


def test_who_plans_from_a_workflow_may_read_the_image_policy_and_who_deploys_may_write_it() -> None:
    granted = {r.id: str(r.arguments["role"]) for r in resources(hardened()) if r.kind == "google_project_iam_member"}
    assert granted["planner-binaryauthorization-policyViewer"] == "roles/binaryauthorization.policyViewer"
    assert granted["deployer-binaryauthorization-policyEditor"] == "roles/binaryauthorization.policyEditor"
