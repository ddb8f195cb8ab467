"""The project's Binary Authorization policy."""

from infra.environments.schema import Environment
from infra.specs.resource import Resource

POLICY = "google_binary_authorization_policy"


def resources(environment: Environment) -> list[Resource]:
    """Part of the cluster's stack: without a cluster the policy has no effect. A destroy brings Google's own back."""
    if environment.image_patterns is None:
        return []
    arguments = {
        # GKE's own agents: Google keeps the list of their images.
        "global_policy_evaluation_mode": "ENABLE",
        "admission_whitelist_patterns": [{"name_pattern": pattern} for pattern in environment.image_patterns],
        "default_admission_rule": {
            "evaluation_mode": "ALWAYS_DENY",
            "enforcement_mode": "ENFORCED_BLOCK_AND_AUDIT_LOG",
        },
    }
    return [Resource(kind=POLICY, id="images", arguments=arguments)]
