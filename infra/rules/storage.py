"""Buckets and images."""

import re
from collections.abc import Iterator

from infra.rules.model import BUCKET, Facts, PlannedResource, Violation, each, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
CLASSES = ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")
ACTIONS = ("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload")


def _checkpoints(facts: Facts) -> list[PlannedResource]:
    return [b for b in facts.of(BUCKET) if b.get("name") == facts.environment.bucket("checkpoints")]


def _lifecycle(bucket: PlannedResource) -> Iterator[tuple[str, PlannedResource]]:
    for i, block in enumerate(bucket.blocks("lifecycle_rule")):
        yield f"lifecycle_rule[{i}]", PlannedResource(kind="", address=bucket.address, values=block)


@rule(reason="writing checkpoints across regions is slow and billed as egress", source="Cloud Storage prices")
def bucket_region(facts: Facts) -> Iterator[Violation]:
    """Buckets are in the cluster's region."""
    for bucket in facts.of(BUCKET):
        if str(bucket.get("location")).lower() != facts.environment.region:
            yield bucket.violation("location", facts.environment.region.upper(), "use the cluster's region")


@rule(reason="otherwise one wrong grant makes a model public", source="CKV_GCP_114, CIS Google Cloud 5.1")
def bucket_private(facts: Facts) -> Iterator[Violation]:
    """Buckets cannot be made public."""
    yield from each(facts.of(BUCKET), "public_access_prevention", "enforced", "state enforced")


@rule(reason="object ACLs bypass IAM", source="CKV_GCP_29, CIS Google Cloud 5.2")
def bucket_uniform_access(facts: Facts) -> Iterator[Violation]:
    """Access to buckets is controlled only by IAM."""
    yield from each(facts.of(BUCKET), "uniform_bucket_level_access", True, "turn it on")


@rule(reason="the API rejects the name on apply", source=PROVIDER)
def bucket_name(facts: Facts) -> Iterator[Violation]:
    """Bucket names are valid."""
    for bucket in facts.of(BUCKET):
        name = str(bucket.get("name"))
        if not re.fullmatch(r"[a-z0-9][-_a-z0-9]{1,61}[a-z0-9]", name) or "goog" in name.split("-")[0]:
            yield bucket.violation("name", "3 to 63 of a-z, 0-9, '-', '_'", "shorten name_prefix or the project id")


@rule(reason="a typo is a permanent difference", source=PROVIDER)
def bucket_storage_class(facts: Facts) -> Iterator[Violation]:
    """Storage classes exist."""
    for bucket in facts.of(BUCKET):
        if bucket.get("storage_class") not in CLASSES:
            yield bucket.violation("storage_class", ", ".join(CLASSES), "choose one")


@rule(reason="the plan accepts typos, and then nothing is ever deleted", source=PROVIDER)
def bucket_lifecycle_actions(facts: Facts) -> Iterator[Violation]:
    """Lifecycle actions exist."""
    for bucket in facts.of(BUCKET):
        for path, part in _lifecycle(bucket):
            if part.get("action.type") not in ACTIONS:
                yield bucket.violation(f"{path}.action", ", ".join(ACTIONS), "correct it", part.get("action.type"))


@rule(reason="unfinished uploads are billed forever", source="Cloud Storage documentation")
def aborted_uploads_end(facts: Facts) -> Iterator[Violation]:
    """Unfinished uploads are deleted."""
    for bucket in facts.of(BUCKET):
        if not any(part.get("action.type") == "AbortIncompleteMultipartUpload" for _, part in _lifecycle(bucket)):
            yield bucket.violation("lifecycle_rule", "AbortIncompleteMultipartUpload", "add the rule", "none")


@rule(
    reason="an age rule would delete the only checkpoint of a run that waits for capacity",
    source="flex-start waits in GKE documentation",
)
def checkpoints_do_not_age(facts: Facts) -> Iterator[Violation]:
    """Lifecycle rules delete only checkpoints that their writer marked as abandoned."""
    for bucket in _checkpoints(facts):
        for path, part in _lifecycle(bucket):
            # Whatever else the condition says: without this one it reaches objects that a commit names.
            if part.get("action.type") == "Delete" and not part.get("condition.days_since_custom_time"):
                allowed = "days_since_custom_time of 1 or more"
                yield bucket.violation(path, allowed, "let the writer prune", part.get("condition"))


@rule(reason="a checkpoint is needed for hours, but would be billed for a week", source="Cloud Storage prices")
def checkpoints_without_soft_delete(facts: Facts) -> Iterator[Violation]:
    """The checkpoint bucket keeps no deleted objects."""
    yield from each(_checkpoints(facts), "soft_delete_policy.retention_duration_seconds", 0, "state 0")


@rule(reason="otherwise an overwritten data set or export is lost", source="CKV_GCP_78")
def data_is_recoverable(facts: Facts) -> Iterator[Violation]:
    """In production, deleted data and exports can be restored."""
    ours = {b.address for b in _checkpoints(facts)}
    for bucket in facts.of(BUCKET) if facts.environment.production else []:
        kept = bucket.get("soft_delete_policy.retention_duration_seconds") or bucket.get("versioning.enabled")
        if bucket.address not in ours and not kept:
            yield bucket.violation(
                "soft_delete_policy", "soft delete or versioning", "set data_soft_delete_days", "neither"
            )


@rule(reason="folders need uniform access and do not support versions", source=PROVIDER)
def folders_without_versions(facts: Facts) -> Iterator[Violation]:
    """A bucket with folders has uniform access and no versions."""
    for bucket in facts.of(BUCKET):
        versions = bucket.get("versioning.enabled")
        if bucket.get("hierarchical_namespace.enabled") and versions:
            yield bucket.violation("hierarchical_namespace", "folders or versions", "turn one off", "both")


@rule(reason="a moved tag changes which image runs", source="Artifact Registry documentation")
def image_tags_stay(facts: Facts) -> Iterator[Violation]:
    """Image tags are immutable."""
    yield from each(facts.of("google_artifact_registry_repository"), "docker_config.immutable_tags", True, "turn it on")


@rule(
    reason="writers delete old checkpoints: a lock keeps them all, other classes bill 30 days for each, versions double the size",
    source="Cloud Storage documentation on retention, classes and requester pays",
)
def checkpoints_can_be_pruned(facts: Facts) -> Iterator[Violation]:
    """Checkpoints are plain STANDARD objects: no retention, no holds, no versions, no other class, no payer."""
    for bucket in _checkpoints(facts):
        for path in ("retention_policy", "default_event_based_hold", "requester_pays", "versioning.enabled"):
            if bucket.get(path):
                yield bucket.violation(path, "unset", "leave it out")
        if bucket.get("storage_class") != "STANDARD":
            yield bucket.violation("storage_class", "STANDARD", "state STANDARD")
        for path, part in _lifecycle(bucket):
            if part.get("action.type") == "SetStorageClass":
                yield bucket.violation(path, "no change of class", "remove it", part.get("action.storage_class"))


@rule(
    reason="otherwise a data set in use is deleted because of its age",
    source="Cloud Storage documentation on lifecycle",
)
def data_does_not_age(facts: Facts) -> Iterator[Violation]:
    """Lifecycle rules of data and exports delete old versions only."""
    ours = {facts.environment.bucket(purpose) for purpose in ("data", "exports")}
    for bucket in (b for b in facts.of(BUCKET) if b.get("name") in ours):
        for path, part in _lifecycle(bucket):
            old = part.get("condition.with_state") == "ARCHIVED" or part.get("condition.num_newer_versions")
            if part.get("action.type") == "Delete" and not old:
                allowed = "with_state ARCHIVED, or num_newer_versions"
                yield bucket.violation(path, allowed, "delete old versions only", part.get("condition"))
