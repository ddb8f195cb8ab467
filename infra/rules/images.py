"""Which images may run, and how long they are kept."""

from collections.abc import Iterator

from infra.rules.model import Facts, Finding, PlannedResource, each, rule

POLICY = "google_binary_authorization_policy"
DENIES = ("ALWAYS_DENY", "REQUIRE_ATTESTATION")
SOURCE = "Binary Authorization documentation on policies"


@rule(reason="Google's default policy admits every image", source=SOURCE)
def images_have_a_policy(facts: Facts) -> Iterator[Finding]:
    """A cluster that enforces the project's image policy has one, here or managed elsewhere."""
    for cluster in facts.cluster():
        enforces = cluster.get("binary_authorization.evaluation_mode") == "PROJECT_SINGLETON_POLICY_ENFORCE"
        elsewhere = facts.environment.security.image_policy_elsewhere
        if enforces and not elsewhere and not facts.of(POLICY):
            path, fix = "binary_authorization", "write it, or set security.image_policy_elsewhere"
            yield cluster.finding(path, f"a {POLICY} in the same stacks", fix, "none")


@rule(reason="a policy that admits every image, or only logs, protects nothing", source=SOURCE)
def image_policy_denies(facts: Facts) -> Iterator[Finding]:
    """The image policy blocks images that it does not name, and names repositories, not registries."""
    policies = facts.of(POLICY)
    yield from each(policies, "default_admission_rule.enforcement_mode", "ENFORCED_BLOCK_AND_AUDIT_LOG", "enforce it")
    yield from each(policies, "global_policy_evaluation_mode", "ENABLE", "admit GKE's system images")
    for policy in policies:
        if policy.get("default_admission_rule.evaluation_mode") not in DENIES:
            yield policy.finding(
                "default_admission_rule.evaluation_mode", ", ".join(DENIES), "deny images that are not named"
            )
        for block in policy.blocks("admission_whitelist_patterns"):
            pattern = str(block.get("name_pattern"))
            if pattern.partition("*")[0].count("/") < 3:
                path, allowed = "admission_whitelist_patterns", "REGISTRY/PROJECT/REPOSITORY/**"
                yield policy.finding(path, allowed, "name one repository", pattern)
        for block in policy.blocks("cluster_admission_rules"):
            if block.get("evaluation_mode") not in DENIES:
                where, allowed = "cluster_admission_rules", ", ".join(DENIES)
                yield policy.finding(where, allowed, "remove the exception", block.get("evaluation_mode"))


@rule(
    reason="otherwise a job that is a month old, or restarts after waiting for capacity, no longer finds its image",
    source="Artifact Registry",
)
def images_outlive_jobs(facts: Facts) -> Iterator[Finding]:
    """Image cleanup deletes only untagged images."""
    for repository in facts.of("google_artifact_registry_repository"):
        for block in repository.blocks("cleanup_policies"):
            policy = PlannedResource(kind="", address=repository.address, values=block)
            if policy.get("action") == "DELETE" and policy.get("condition.tag_state") != "UNTAGGED":
                got = policy.get("condition.tag_state", "any")
                yield repository.finding("cleanup_policies", "tag_state UNTAGGED", "keep tagged images", got)
