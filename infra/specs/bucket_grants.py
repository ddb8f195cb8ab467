"""Who may do what in a bucket, and below which of its prefixes."""

from infra.environments.schema import Environment
from infra.specs.resource import Resource


def grant(
    environment: Environment,
    id: str,
    *,
    purpose: str,
    role: str,
    member: str,
    after: tuple[str, ...],
    condition: dict[str, str] | None = None,
) -> Resource:
    arguments: dict[str, object] = {"bucket": environment.bucket(purpose), "role": role, "member": member}
    if condition:
        arguments["condition"] = condition
    return Resource(kind="google_storage_bucket_iam_member", id=id, arguments=arguments, after=after)


def below(environment: Environment, title: str, prefixes: tuple[str, ...]) -> dict[str, str]:
    """The condition that an object of the checkpoints is below one of them."""
    bucket = environment.bucket("checkpoints")
    places = [f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")' for prefix in prefixes]
    return {"title": title, "expression": " || ".join(places)}
