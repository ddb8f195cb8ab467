"""Cloud SQL for PostgreSQL: private address, IAM authentication, backups with point-in-time
recovery.
"""

from holdfast.vocabulary.roles import DATABASE_OWNER, RESULTS_DATABASE
from infra.environments.schema import Database, Environment
from infra.specs.encryption import key_argument, key_in_force
from infra.specs.identities import account, project_grant
from infra.specs.network import PEERING, api, makes_peering
from infra.specs.resource import Resource, deletion_policy

INSTANCE = "google_sql_database_instance.results"
# Values as the API spells them; each is a finding of a CIS benchmark when missing.
_CLOUDSQL = ("cloudsql.enable_pgaudit", "cloudsql.iam_authentication")
_LOGGED = (
    "log_checkpoints",
    "log_connections",
    "log_disconnections",
    "log_hostname",
    "log_lock_waits",
)
FLAGS = dict.fromkeys((*_CLOUDSQL, *_LOGGED), "on") | {
    "log_min_duration_statement": "-1",
    "log_min_error_statement": "error",
    "log_min_messages": "warning",
    "log_statement": "ddl",
    "log_temp_files": "0",
    # The migration makes the extension; without this setting it records nothing. Reads and writes
    # are left out: workers ask the queue many times a second.
    "pgaudit.log": "ddl,role",
}
NO_STATEMENT_LOG = {
    "CKV2_GCP_13": "log_duration writes a line for each statement, and workers poll the queue"
}


def resources(environment: Environment) -> list[Resource]:
    if environment.database is None:
        return []
    protected = environment.database.deletion_protection
    database = Resource(
        kind="google_sql_database",
        id="results",
        arguments={
            "name": RESULTS_DATABASE,
            "instance": environment.database_name,
            # If the instance may be deleted, the database goes with it: deleting it first fails on
            # open connections.
            "deletion_policy": "PREVENT" if protected else "ABANDON",
        },
        after=(INSTANCE,),
        protected=protected,
    )
    logins = []
    for role in environment.database_roles:
        logins.append(_login(environment, role, "client"))
        logins.append(_login(environment, role, "instanceUser"))
    return [
        _instance(environment, environment.database),
        database,
        *(_user(environment, role) for role in environment.database_roles),
        *logins,
    ]


def _user(environment: Environment, role: str) -> Resource:
    arguments: dict[str, object] = {
        "name": environment.database_user(role),
        "instance": environment.database_name,
        "type": "CLOUD_IAM_SERVICE_ACCOUNT",
        # PostgreSQL refuses to delete a user that owns tables.
        "deletion_policy": "ABANDON",
    }
    if role == "migrator":
        # An IAM login has no rights at first. As this user, the platform's Job grants the other
        # users their rights.
        arguments["database_roles"] = [DATABASE_OWNER]
    return Resource(
        kind="google_sql_user",
        id=role,
        arguments=arguments,
        after=(INSTANCE, account(role)),
    )


def _instance(environment: Environment, database: Database) -> Resource:
    peering = [PEERING] if makes_peering(environment) else []
    return Resource(
        kind="google_sql_database_instance",
        id="results",
        arguments={
            "name": environment.database_name,
            "region": environment.region,
            "database_version": "POSTGRES_18",
            "deletion_protection": database.deletion_protection,
            "deletion_policy": deletion_policy(database.deletion_protection),
            "settings": _settings(environment, database),
            **key_argument(environment, "encryption_key_name"),
        },
        after=(
            *peering,
            *api(environment, "sqladmin"),
            *key_in_force(environment),
        ),
        # The disk grows by itself; without this a grown disk would be planned back and replaced.
        ignore_changes=("settings[0].disk_size",),
        skips=NO_STATEMENT_LOG,
        protected=database.deletion_protection,
    )


def _settings(environment: Environment, database: Database) -> dict[str, object]:
    flags = []
    for name, value in FLAGS.items():
        flags.append({"name": name, "value": value})
    return {
        "tier": database.tier,
        "edition": "ENTERPRISE",
        "availability_type": "REGIONAL" if database.highly_available else "ZONAL",
        "disk_type": "PD_SSD",
        "disk_size": database.disk_gib,
        "disk_autoresize": True,
        "deletion_protection_enabled": database.deletion_protection,
        "user_labels": environment.all_labels(),
        "ip_configuration": {
            "ipv4_enabled": False,
            "private_network": environment.network_path,
            # Only the Auth Proxy or a connector gets in; both bring the certificate and renew the
            # login.
            "ssl_mode": "TRUSTED_CLIENT_CERTIFICATE_REQUIRED",
        },
        "backup_configuration": {
            "enabled": True,
            "point_in_time_recovery_enabled": True,
            "start_time": "01:00",
            "transaction_log_retention_days": 7,
            "backup_retention_settings": {
                "retained_backups": database.backup_days,
                "retention_unit": "COUNT",
            },
        },
        "maintenance_window": {
            "day": 7,
            "hour": 3,
            "update_track": "stable",
        },
        "insights_config": {"query_insights_enabled": True},
        "database_flags": flags,
    }


def _login(environment: Environment, role: str, right: str) -> Resource:
    """Grant `right` on the instance: by a condition, since Cloud SQL grants on projects only."""
    instance = f"projects/{environment.project}/instances/{environment.database_name}"
    expression = (
        f'resource.name == "{instance}" && resource.type == "sqladmin.googleapis.com/Instance"'
    )
    condition = {"title": "results database only", "expression": expression}
    return project_grant(
        environment,
        f"{role}-sql-{right}",
        role,
        f"roles/cloudsql.{right}",
        condition,
    )
