"""Queue and database, and where all that is regional lies."""

from collections.abc import Iterator

from holdfast.contract.values import duration_s
from infra.rules.model import BUCKET, CLUSTER, POOL, Facts, Finding, PlannedResource, each, rule

SUBSCRIPTION = "google_pubsub_subscription"
INSTANCE = "google_sql_database_instance"
# Where a kind states its region; buckets spell it in capitals.
REGIONS = {
    "google_artifact_registry_repository": "location",
    "google_compute_router": "region",
    "google_compute_router_nat": "region",
    "google_compute_subnetwork": "region",
    "google_container_node_pool": "location",
    BUCKET: "location",
    INSTANCE: "region",
}
CLIENT_CERTIFICATE = "TRUSTED_CLIENT_CERTIFICATE_REQUIRED"
MIN_RETENTION_S = 86_400
BACKUPS = {"backup_retention_settings.retained_backups": 7, "transaction_log_retention_days": 7}
SUPERUSER = "cloudsqlsuperuser"
MAX_DRAIN_BACKOFF_S = 10


def _seconds(text: object) -> float:
    seconds = duration_s(str(text), "s")
    return -1.0 if seconds is None else seconds


def _work(facts: Facts) -> list[PlannedResource]:
    return [s for s in facts.of(SUBSCRIPTION) if s.get("dead_letter_policy")]


@rule(
    reason="every preemption counts as a delivery: with few attempts, healthy items become dead letters",
    source="Pub/Sub documentation on delivery attempts",
)
def evictions_do_not_bury(facts: Facts) -> Iterator[Finding]:
    """Items have many delivery attempts before they become dead letters."""
    for subscription in _work(facts):
        if not 20 <= (subscription.get("dead_letter_policy.max_delivery_attempts") or 0) <= 100:
            path = "dead_letter_policy.max_delivery_attempts"
            yield subscription.finding(path, "20 to 100", "set queue.max_delivery_attempts")


@rule(
    reason="a common default keeps 20 minutes and deletes any older backlog",
    source="Pub/Sub documentation on retention",
)
def backlog_is_kept(facts: Facts) -> Iterator[Finding]:
    """Backlogs are kept for at least a day, and subscriptions do not expire."""
    for subscription in facts.of(SUBSCRIPTION):
        if _seconds(subscription.get("message_retention_duration")) < MIN_RETENTION_S:
            yield subscription.finding("message_retention_duration", "86400s or more", "set queue.retention_days")
        if subscription.get("expiration_policy.ttl") != "":
            yield subscription.finding("expiration_policy.ttl", "'' (never)", "set an empty ttl", "31 days")


@rule(
    reason="the backoff also delays items that a draining worker returns",
    source="Pub/Sub documentation on retry policies",
)
def drain_is_not_punished(facts: Facts) -> Iterator[Finding]:
    """The minimum retry backoff is a few seconds."""
    for subscription in _work(facts):
        if not 0 <= _seconds(subscription.get("retry_policy.minimum_backoff")) <= MAX_DRAIN_BACKOFF_S:
            path, allowed = "retry_policy.minimum_backoff", f"0s to {MAX_DRAIN_BACKOFF_S}s"
            yield subscription.finding(path, allowed, "set queue.min_backoff_s")


@rule(
    reason="without both, dead letters are lost or redelivered forever",
    source="Pub/Sub documentation on dead-letter topics",
)
def dead_letters_arrive(facts: Facts) -> Iterator[Finding]:
    """Pub/Sub's service agent may move items to the dead-letter topic, and a subscription keeps them."""
    for subscription in _work(facts):
        dead = str(subscription.get("dead_letter_policy.dead_letter_topic")).rpartition("/")[2]
        kept = any(s.get("topic") == dead for s in facts.of(SUBSCRIPTION))
        publishes = _agent_has(facts, "google_pubsub_topic_iam_member", "topic", dead, "roles/pubsub.publisher")
        name = str(subscription.get("name"))
        reads = _agent_has(
            facts, "google_pubsub_subscription_iam_member", "subscription", name, "roles/pubsub.subscriber"
        )
        if not (kept and publishes and reads):
            got = f"subscription: {kept}, publishes: {publishes}, reads: {reads}"
            yield subscription.finding(
                "dead_letter_policy", "all three", "grant the agent both roles, keep the subscription", got
            )


def _agent_has(facts: Facts, kind: str, target: str, name: str, role: str) -> bool:
    return any(
        "gcp-sa-pubsub" in str(g.get("member")) and (g.get(target), g.get("role")) == (name, role)
        for g in facts.of(kind)
    )


@rule(reason="the database holds the results", source="CIS Google Cloud 6.5, 6.6")
def database_private(facts: Facts) -> Iterator[Finding]:
    """The database has only a private address, no authorized networks, and requires TLS."""
    for instance in facts.of(INSTANCE):
        if named := instance.blocks("settings.ip_configuration.authorized_networks"):
            got = ", ".join(str(block.get("value")) for block in named)
            yield instance.finding("settings.ip_configuration.authorized_networks", "none", "remove them", got)
    yield from each(facts.of(INSTANCE), "settings.ip_configuration.ipv4_enabled", False, "keep it private")
    yield from each(facts.of(INSTANCE), "settings.ip_configuration.ssl_mode", CLIENT_CERTIFICATE, "set it")


@rule(reason="a dropped table can only be restored from a backup", source="CIS Google Cloud 6.7")
def database_backed_up(facts: Facts) -> Iterator[Finding]:
    """The database has backups with point-in-time recovery."""
    for flag in ("enabled", "point_in_time_recovery_enabled"):
        yield from each(facts.of(INSTANCE), f"settings.backup_configuration.{flag}", True, "turn it on")
    for instance in facts.of(INSTANCE):
        for path, least in BACKUPS.items():
            full = f"settings.backup_configuration.{path}"
            if not (instance.get(full) or 0) >= least:
                yield instance.finding(full, f"{least} or more", "set database.backup_days")


@rule(reason="a full disk stops every batch", source="Cloud SQL documentation on storage")
def database_grows(facts: Facts) -> Iterator[Finding]:
    """The database's disk grows automatically."""
    yield from each(facts.of(INSTANCE), "settings.disk_autoresize", True, "turn it on")


@rule(reason="passwords leak; identities do not", source="Cloud SQL documentation on IAM authentication")
def database_by_identity(facts: Facts) -> Iterator[Finding]:
    """Workloads use IAM authentication for the database."""
    for instance in facts.of(INSTANCE):
        flags = {f.get("name"): f.get("value") for f in instance.blocks("settings.database_flags")}
        if flags.get("cloudsql.iam_authentication") != "on":
            path, allowed = "settings.database_flags", "cloudsql.iam_authentication = on"
            yield instance.finding(path, allowed, "add the flag", flags.get("cloudsql.iam_authentication", "unset"))
    migrator = facts.environment.database_user("migrator")
    for user in facts.of("google_sql_user"):
        # Only who changes the schema may change it.
        if SUPERUSER in (user.get("database_roles") or ()) and user.get("name") != migrator:
            yield user.finding("database_roles", f"none of {SUPERUSER}", f"leave that to {migrator}")
        if not str(user.get("type", "")).startswith("CLOUD_IAM"):
            yield user.finding("type", "CLOUD_IAM_SERVICE_ACCOUNT", "use an identity", user.get("type", "password"))


@rule(
    reason="otherwise results, images and traffic cross regions: slow, billed as egress, and possibly not allowed",
    source="Google Cloud documentation on locations",
)
def all_in_one_region(facts: Facts) -> Iterator[Finding]:
    """Buckets, database, images, network and pools are in the cluster's region, and topics keep messages there."""
    region = facts.environment.region
    for kind, path in REGIONS.items():
        for one in facts.of(kind):
            if str(one.get(path)).lower() != region:
                yield one.finding(path, region, "use the cluster's region")
    for one in facts.of(CLUSTER, POOL):
        if far := [zone for zone in one.get("node_locations", []) if zone.rpartition("-")[0] != region]:
            yield one.finding("node_locations", f"zones of {region}", "use zones of the region", ", ".join(far))
    for topic in facts.of("google_pubsub_topic"):
        path = "message_storage_policy.allowed_persistence_regions"
        if topic.get(path) != [region]:
            yield topic.finding(path, f"[{region}]", "set the cluster's region", topic.get(path, "any"))
