"""Texts for people, as descriptions and display names: correcting one must not replace a
resource.
"""

from collections.abc import Iterator

from infra.rules.model import Facts, Finding, rule

TEXTS = ("comment", "description", "display_name", "title")
# Kinds whose texts the provider changes in place, read in its source. A kind that is not listed
# may replace the resource: of those that exist here, the cluster, networks, subnetworks and global
# addresses do.
CHANGED_IN_PLACE = {
    "google_artifact_registry_repository": ("description",),
    "google_billing_budget": ("display_name",),
    "google_binary_authorization_policy": ("description",),
    "google_compute_firewall": ("description",),
    "google_compute_router": ("description",),
    "google_dns_managed_zone": ("description",),
    "google_iam_workload_identity_pool": ("description", "display_name"),
    "google_iam_workload_identity_pool_provider": ("description", "display_name"),
    "google_logging_log_view": ("description",),
    "google_logging_project_sink": ("description",),
    "google_monitoring_alert_policy": ("display_name",),
    "google_monitoring_notification_channel": ("description", "display_name"),
    "google_service_account": ("description", "display_name"),
}


@rule(
    reason="otherwise the next apply after a corrected word destroys the resource and its data",
    source="google provider 7.39: ForceNew on the description of a cluster and of networks",
)
def texts_can_change(facts: Facts) -> Iterator[Finding]:
    """Every text for people can be corrected without replacing the resource that has it."""
    for resource in facts.resources:
        harmless = (*CHANGED_IN_PLACE.get(resource.kind, ()), *resource.ignore_changes)
        for path in TEXTS:
            if resource.get(path) and path not in harmless:
                fix = (
                    "leave the text out, add it to ignore_changes, or, if the provider changes it"
                    " in place, to CHANGED_IN_PLACE in infra/rules/replacement.py"
                )
                yield resource.finding(path, "a text that changes in place, or is ignored", fix)
