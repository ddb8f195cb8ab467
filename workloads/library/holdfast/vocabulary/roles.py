"""Names the roles of pods: their identities, namespaces, and shared names outside the cluster."""

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
"""Role -> namespace. The first role of a namespace is its purpose."""
JOB_ROLES = ("trainer", "batch")
"""Accounts of jobs, in each namespace of a team."""
JOB_NAMESPACES = (NAMESPACE_TRAINING, NAMESPACE_BATCH)
"""Namespaces of the default team's jobs, which may be moved and get receipts."""
TEAM_PROXY = "proxy"
"""Account of proxies and routers of a team's services. Others have one for each service."""
DEFAULT_TEAM = "default"
TEAMS_FOLDER = "teams"
"""Folder of the checkpoint bucket in which each team but the default one has its own."""


def team_role(team: str) -> str:
    """Returns the role of a team's jobs: one Google service account for all of its namespaces."""
    return f"team-{team}"


def team_folder(team: str) -> str:
    """Returns the folder of a team's checkpoints. A run named like a team is elsewhere."""
    return f"{TEAMS_FOLDER}/{team}"


# private.googleapis.com. The network's zone resolves every Google API to it, and network policies
# admit no other way out; neither works without the other.
GOOGLE_APIS_CIDR = "199.36.153.8/30"

# On the Cloud SQL instance; batch pods connect to it.
RESULTS_DATABASE = "results"
# Workers write results; the exporter reads the backlog; the migrator makes the tables and grants
# rights.
DATABASE_ROLES = ("batch", "exporter", "migrator")
# Cloud SQL's own role: it owns databases that its API made, and only it may create roles.
DATABASE_OWNER = "cloudsqlsuperuser"


def events_view(project_id: str, cluster_name: str) -> str:
    """Returns the log view through which exporter and mover read the event lines of pods.

    The foundation stack makes it.
    """
    return f"projects/{project_id}/locations/global/buckets/_Default/views/{cluster_name}-events"
