"""Rules on the database and on the lifetime of checkpoints."""

from collections.abc import Iterator

from infra.rules.model import BUCKET, Facts, Finding, rule

INSTANCE = "google_sql_database_instance"
SUPERUSER = "cloudsqlsuperuser"


@rule(
    reason="passwords leak; identities do not",
    source="Cloud SQL documentation on IAM authentication",
)
def database_by_identity(facts: Facts) -> Iterator[Finding]:
    """Workloads use IAM authentication for the database."""
    for instance in facts.of(INSTANCE):
        value = "unset"
        for flag in instance.blocks("settings.database_flags"):
            if flag.get("name") == "cloudsql.iam_authentication":
                value = flag.get("value")
        if value != "on":
            path = "settings.database_flags"
            allowed = "cloudsql.iam_authentication = on"
            yield instance.finding(path, allowed, "add the flag", value)
    migrator = facts.environment.database_user("migrator")
    for user in facts.of("google_sql_user"):
        # The migrator alone changes the schema.
        if SUPERUSER in (user.get("database_roles") or ()) and user.get("name") != migrator:
            yield user.finding(
                "database_roles",
                f"none of {SUPERUSER}",
                f"leave that to {migrator}",
            )
        if not str(user.get("type", "")).startswith("CLOUD_IAM"):
            yield user.finding(
                "type",
                "CLOUD_IAM_SERVICE_ACCOUNT",
                "use an identity",
                user.get("type", "password"),
            )


@rule(
    reason="an age rule would delete the only checkpoint of a run that waits for capacity",
    source="flex-start waits in GKE documentation",
)
def checkpoints_do_not_age(facts: Facts) -> Iterator[Finding]:
    """Lifecycle rules delete only checkpoints that their writer marked as abandoned."""
    for bucket in facts.of(BUCKET):
        if bucket.get("name") != facts.environment.bucket("checkpoints"):
            continue
        for number, part in enumerate(bucket.blocks("lifecycle_rule")):
            # Without this condition the rule reaches objects that a commit names.
            is_bounded = part.get("condition.days_since_custom_time")
            if part.get("action.type") == "Delete" and not is_bounded:
                path = f"lifecycle_rule[{number}]"
                allowed = "days_since_custom_time of 1 or more"
                yield bucket.finding(path, allowed, "let the writer prune", part.get("condition"))
