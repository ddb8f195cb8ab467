"""Buckets and images."""

from collections.abc import Iterator

from infra.rules.model import BUCKET, Facts, Finding, PlannedResource, each, rule


def _checkpoints(facts: Facts) -> list[PlannedResource]:
    return [b for b in facts.of(BUCKET) if b.get("name") == facts.environment.bucket("checkpoints")]


def _lifecycle(bucket: PlannedResource) -> Iterator[tuple[str, PlannedResource]]:
    for i, block in enumerate(bucket.blocks("lifecycle_rule")):
        yield f"lifecycle_rule[{i}]", PlannedResource(kind="", address=bucket.address, values=block)


@rule(reason="unfinished uploads are billed forever", source="Cloud Storage documentation")
def aborted_uploads_end(facts: Facts) -> Iterator[Finding]:
    """Unfinished uploads are deleted."""
    for bucket in facts.of(BUCKET):
        if not any(part.get("action.type") == "AbortIncompleteMultipartUpload" for _, part in _lifecycle(bucket)):
            yield bucket.finding("lifecycle_rule", "AbortIncompleteMultipartUpload", "add the rule", "none")


@rule(
    reason="an age rule would delete the only checkpoint of a run that waits for capacity",
    source="flex-start waits in GKE documentation",
)
def checkpoints_do_not_age(facts: Facts) -> Iterator[Finding]:
    """Lifecycle rules delete only checkpoints that their writer marked as abandoned."""
    for bucket in _checkpoints(facts):
        for path, part in _lifecycle(bucket):
            # Whatever else the condition says: without this one it reaches objects that a commit names.
            if part.get("action.type") == "Delete" and not part.get("condition.days_since_custom_time"):
                allowed = "days_since_custom_time of 1 or more"
                yield bucket.finding(path, allowed, "let the writer prune", part.get("condition"))


@rule(reason="a checkpoint is needed for hours, but would be billed for a week", source="Cloud Storage prices")
def checkpoints_without_soft_delete(facts: Facts) -> Iterator[Finding]:
    """The checkpoint bucket keeps no deleted objects."""
    yield from each(_checkpoints(facts), "soft_delete_policy.retention_duration_seconds", 0, "state 0")


@rule(reason="otherwise an overwritten data set or export is lost", source="CKV_GCP_78")
def data_is_recoverable(facts: Facts) -> Iterator[Finding]:
    """In production, deleted data and exports can be restored."""
    ours = {b.address for b in _checkpoints(facts)}
    for bucket in facts.of(BUCKET) if facts.environment.production else []:
        kept = bucket.get("soft_delete_policy.retention_duration_seconds") or bucket.get("versioning.enabled")
        if bucket.address not in ours and not kept:
            yield bucket.finding(
                "soft_delete_policy", "soft delete or versioning", "set data_soft_delete_days", "neither"
            )


@rule(
    reason="writers delete old checkpoints: a lock keeps them all, other classes bill 30 days for each, versions double the size",
    source="Cloud Storage documentation on retention, classes and requester pays",
)
def checkpoints_can_be_pruned(facts: Facts) -> Iterator[Finding]:
    """Checkpoints are plain STANDARD objects: no retention, no holds, no versions, no other class, no payer."""
    for bucket in _checkpoints(facts):
        for path in ("retention_policy", "default_event_based_hold", "requester_pays", "versioning.enabled"):
            if bucket.get(path):
                yield bucket.finding(path, "unset", "leave it out")
        if bucket.get("storage_class") != "STANDARD":
            yield bucket.finding("storage_class", "STANDARD", "state STANDARD")
        for path, part in _lifecycle(bucket):
            if part.get("action.type") == "SetStorageClass":
                yield bucket.finding(path, "no change of class", "remove it", part.get("action.storage_class"))


@rule(
    reason="otherwise a data set in use is deleted because of its age",
    source="Cloud Storage documentation on lifecycle",
)
def data_does_not_age(facts: Facts) -> Iterator[Finding]:
    """Lifecycle rules of data and exports delete old versions only."""
    ours = {facts.environment.bucket(purpose) for purpose in ("data", "exports")}
    for bucket in (b for b in facts.of(BUCKET) if b.get("name") in ours):
        for path, part in _lifecycle(bucket):
            old = part.get("condition.with_state") == "ARCHIVED" or part.get("condition.num_newer_versions")
            if part.get("action.type") == "Delete" and not old:
                allowed = "with_state ARCHIVED, or num_newer_versions"
                yield bucket.finding(path, allowed, "delete old versions only", part.get("condition"))
