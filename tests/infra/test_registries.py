"""Artifact Registry pulls images of a registry elsewhere; nothing else has the password."""

from dataclasses import replace

from infra.environments.schema import Registry
from infra.rules import require_clean
from infra.specs import resources
from tests.infra.samples import make_hardened

SECRET = "projects/acme-ai-platform/secrets/ngc/versions/1"
PRIVATE = Registry(
    name="ngc",
    upstream="https://nvcr.io",
    user="$oauthtoken",
    password=SECRET,
)
PUBLIC = Registry(name="quay", upstream="https://quay.io")
SECURITY = replace(make_hardened().security, registries=(PRIVATE, PUBLIC))
ENVIRONMENT = replace(make_hardened(), security=SECURITY)
PLANNED = {resource.address: resource.arguments for resource in resources(ENVIRONMENT)}
REPOSITORY = "google_artifact_registry_repository"


def test_nodes_read_each_remote_repository() -> None:
    require_clean(ENVIRONMENT)
    for registry in (PRIVATE, PUBLIC):
        remote = PLANNED[f"{REPOSITORY}.images-{registry.name}"]
        reader = PLANNED[f"{REPOSITORY}_iam_member.images-{registry.name}-nodes"]
        assert remote["mode"] == "REMOTE_REPOSITORY"
        assert registry.upstream in str(remote["remote_repository_config"])
        assert reader["repository"] == remote["repository_id"]
        assert reader["member"] == ENVIRONMENT.member("nodes")


def test_only_the_private_repository_names_the_secret() -> None:
    naming = []
    for address, arguments in PLANNED.items():
        if SECRET in str(arguments):
            naming.append(address)
    assert naming == [f"{REPOSITORY}.images-ngc"]


def test_image_policy_admits_the_remote_repositories() -> None:
    patterns = ENVIRONMENT.image_patterns or ()
    prefix = "us-central1-docker.pkg.dev/acme-ai-platform/holdfast-example"
    assert patterns[:3] == (f"{prefix}/**", f"{prefix}-ngc/**", f"{prefix}-quay/**")
