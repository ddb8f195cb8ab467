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
        roles = user.get("database_roles") or ()
        if SUPERUSER in roles and user.get("name") != migrator:
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
    """Lifecycle rules delete only checkpoints that their writer marked as abandoned, and old
    versions.
    """
    for bucket in facts.of(BUCKET):
        if bucket.get("name") != facts.environment.bucket("checkpoints"):
            continue
        for number, part in enumerate(bucket.blocks("lifecycle_rule")):
            # Without this condition the rule reaches objects that a commit names.
            is_bounded = (
                part.get("condition.days_since_custom_time")
                or part.get("condition.with_state") == "ARCHIVED"
            )
            if part.get("action.type") == "Delete" and not is_bounded:
                path = f"lifecycle_rule[{number}]"
                allowed = "days_since_custom_time of 1 or more, or old versions only"
                yield bucket.finding(path, allowed, "let the writer prune", part.get("condition"))


@rule(
    reason=(
        "pgaudit records nothing without a list of classes, and a line for each statement of a"
        " queue costs more than the database"
    ),
    source="https://docs.cloud.google.com/sql/docs/postgres/pg-audit",
)
def database_audits_changes(facts: Facts) -> Iterator[Finding]:
    """The database records changes of schema and roles, and no single reads and writes."""
    for instance in facts.of(INSTANCE):
        flags: dict[str, str] = {}
        for flag in instance.blocks("settings.database_flags"):
            flags[str(flag.get("name"))] = str(flag.get("value"))
        classes = set(flags.get("pgaudit.log", "").split(","))
        path = "settings.database_flags"
        if flags.get("cloudsql.enable_pgaudit") == "on" and not {"ddl", "role"} <= classes:
            got = flags.get("pgaudit.log") or "no pgaudit.log"
            yield instance.finding(path, "pgaudit.log = ddl,role", "add the flag", got)
        is_flood = classes & {"all", "read", "write"} or flags.get("log_statement") in (
            "all",
            "mod",
        )
        if is_flood or flags.get("log_duration") == "on":
            yield instance.finding(
                path,
                "no line for each statement",
                "leave log_duration, log_statement=all and pgaudit's reads and writes out",
                "a line for each statement",
            )
