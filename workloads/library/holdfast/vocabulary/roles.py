"""Roles of pods: their identities and namespaces, and what they share outside the cluster."""

ROLES = ("nodes", "trainer", "batch", "server", "exporter", "migrator", "mover")
"""One Google service account per role; the Kubernetes service account has the same name."""

NAMESPACE_TRAINING = "training"
NAMESPACE_BATCH = "batch"
NAMESPACE_SERVING = "serving"
NAMESPACE_MONITORING = "monitoring"
KSA_NAMESPACES = {
    "trainer": NAMESPACE_TRAINING,
    "batch": NAMESPACE_BATCH,
    "server": NAMESPACE_SERVING,
    "exporter": NAMESPACE_MONITORING,
    "migrator": NAMESPACE_BATCH,
    "mover": NAMESPACE_MONITORING,
}
"""The first role of a namespace is the one that it is for."""
JOB_ROLES = ("trainer", "batch")
"""Accounts of jobs, in each namespace of a team."""
JOB_NAMESPACES = (NAMESPACE_TRAINING, NAMESPACE_BATCH)
"""Where jobs of the default team run, that are moved and get receipts."""
DEFAULT_TEAM = "default"
TEAMS_FOLDER = "teams"
"""Folder of the checkpoint bucket in which each team but the default one has its own."""


def team_role(team: str) -> str:
    """The role of a team's jobs: one Google service account for all accounts in its namespaces."""
    return f"team-{team}"


def team_folder(team: str) -> str:
    """Where a team's checkpoints are. A run named like a team is elsewhere."""
    return f"{TEAMS_FOLDER}/{team}"


# private.googleapis.com. The network's own zone resolves every Google API to it, and network
# policies admit no other way out; both are wrong without the other.
GOOGLE_APIS_CIDR = "199.36.153.8/30"

# On the Cloud SQL instance; batch pods connect to it.
RESULTS_DATABASE = "results"
# Workers write results; the exporter reads how many are left; the migrator makes the tables and
# says who may do what.
DATABASE_ROLES = ("batch", "exporter", "migrator")
# Cloud SQL's own: owner of a database that its API made, and the only role there that may make
# roles.
DATABASE_OWNER = "cloudsqlsuperuser"


def events_view(project_id: str, cluster_name: str) -> str:
    """The log view through which exporter and mover read the event lines of pods; made by the
    foundation stack.
    """
    return f"projects/{project_id}/locations/global/buckets/_Default/views/{cluster_name}-events"
