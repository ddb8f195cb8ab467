"""Spells names of the Kubernetes API: versions, labels and annotations, and priority classes.

They are names of Kubernetes, JobSet, Kueue and GKE. Labels of a pool's nodes are in `pools`; names
that pods and processes share are in the other modules of this room.
"""

from dataclasses import dataclass

# API versions as a manifest spells them; `api_path` makes the URL.
JOB_API = "batch/v1"
LEASE_API = "coordination.k8s.io/v1"
JOBSET_API = "jobset.x-k8s.io/v1alpha2"
KUEUE_API = "kueue.x-k8s.io/v1beta2"
PROVISIONING_API = "autoscaling.x-k8s.io/v1"
COMPUTE_CLASS_API = "cloud.google.com/v1"
MONITORING_API = "monitoring.googleapis.com/v1"
FQDN_API = "networking.gke.io/v1alpha1"
# GKE's managed metrics adapter: general from 1.37, preview from 1.36.4.
AUTOSCALING_METRIC_API = "autoscaling.gke.io/v1beta1"
# GKE versions from which on a Deployment may end at zero replicas, and ComputeClasses surely
# recycle nodes.
SCALES_TO_ZERO = (1, 37)
CLASSES_RECYCLE = (1, 35)
# Where a container finds the token of its pod's account, and the authority of the API server.
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def api_path(api_version: str) -> str:
    """Returns the path of a version: `batch/v1` -> `/apis/batch/v1`."""
    return f"/apis/{api_version}"


def api_group(api_version: str) -> str:
    """Returns the group as roles name it: `batch/v1` -> `batch`."""
    return api_version.partition("/")[0]


# Set by the Job controller; JobSet's pods carry them too, with the child Job's name.
LABEL_JOB = "batch.kubernetes.io/job-name"
ANNOTATION_INDEX = "batch.kubernetes.io/job-completion-index"
# On pods of Jobs with backoffLimitPerIndex: earlier failures of the index.
ANNOTATION_IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
ANNOTATION_CHARGED_FAILURES = "batch.kubernetes.io/job-index-failure-count"
# Set by JobSet on its Jobs and pods.
LABEL_JOBSET = "jobset.sigs.k8s.io/jobset-name"
ANNOTATION_RESTART = "jobset.sigs.k8s.io/restart-attempt"

# On a Job or JobSet, set by its submitter: the LocalQueue that starts it.
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
# On a Job or JobSet: its WorkloadPriorityClass, which orders it among the jobs of its team.
LABEL_JOB_PRIORITY = "kueue.x-k8s.io/priority-class"
# On a Job, set by its submitter, and by Kueue on its Workload: the number of its pods may change.
ANNOTATION_ELASTIC = "kueue.x-k8s.io/elastic-job"
# On a pod, by Kueue: the ClusterQueue that started its job.
LABEL_CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
# Of the operators, from their own manifests.
NAMESPACE_KUEUE = "kueue-system"
NAMESPACE_JOBSET = "jobset-system"
# Kueue's metrics: collected by manifests, read by dashboards.
KUEUE_ADMISSION_WAIT = "kueue_admission_wait_time_seconds"
KUEUE_PENDING = "kueue_pending_workloads"
KUEUE_METRICS = (KUEUE_ADMISSION_WAIT, KUEUE_PENDING)
# Reasons of the condition QuotaReserved (gate UnadmittedWorkloadsObservability, Kueue 0.19) that
# last until a person acts. Older versions and a closed gate say Inadmissible.
KUEUE_TOO_LARGE = "ExceedsMaxQuota"
KUEUE_INADMISSIBLE = {
    "NoMatchingFlavor": "correct nodeSelector and tolerations, or submit to another queue",
    KUEUE_TOO_LARGE: "ask for less, or ask the platform team for a larger quota",
    "Misconfigured": "correct the queue's name or the queue",
    "Suspended": "ask who stopped the queue",
    "Inadmissible": "correct the job or the queue",
}
KUEUE_REVOKED = "DeactivatedDueToAdmissionCheck"
"""Reason of the condition Evicted after the nodes of a request have ended."""
PROVISIONING_CONTROLLER = "kueue.x-k8s.io/provisioning-request"
PROVISIONING_CLASS = "queued-provisioning.gke.io"
# On a Job: passed on to the ProvisioningRequest that Kueue makes.
ANNOTATION_PROVISIONED_RUN = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
# On nodes made for one ProvisioningRequest: the name that its status holds under the detail.
LABEL_PROVISIONING_REQUEST = "autoscaling.gke.io/provisioning-request"
RESIZE_REQUEST_DETAIL = "ResizeRequestName"
# On pods of a ProvisioningRequest, by Kueue or by the user.
ANNOTATION_CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"

# On every object of the platform; written by manifests, read by Kueue's namespace selectors and by
# `kubectl apply --prune`.
LABEL_NAME = "app.kubernetes.io/name"
LABEL_PART_OF = "app.kubernetes.io/part-of"
PART_OF = "holdfast"
# Only on objects that `make apply` applies: it removes those of them that are no longer rendered.
LABEL_HALF = "holdfast.dev/half"
# On pods of a gang, with the name of its run: network policies select by it, and admission reserves
# it for the gang's Jobs.
LABEL_GANG = "holdfast.dev/gang"
PLATFORM_HALF = "platform"
# On a namespace of a team other than the default one; its ClusterQueues select it.
LABEL_TEAM = "holdfast.dev/team"

# On a pod of a job: a second copy of it does no harm, so it may be declared dead while its node is
# silent. Kueue's FailureRecoveryPolicy reads the same annotation.
ANNOTATION_EXPENDABLE = "kueue.x-k8s.io/safe-to-forcefully-terminate"
EXPENDABLE = {ANNOTATION_EXPENDABLE: "true"}
# On a pod of a sharded gang: size of the state that all its nodes save together, as 60Gi.
ANNOTATION_STATE = "holdfast.dev/state"
# On a job and its pods: digest of the code that `source` of its file names.
ANNOTATION_SOURCE = "holdfast.dev/source"

LABEL_MACHINE_TYPE = "node.kubernetes.io/instance-type"
LABEL_NAMESPACE = "kubernetes.io/metadata.name"  # set by the API server on every namespace
SYSTEM_NAMESPACES = ("kube-system", "gmp-system", "gke-managed-system")

# Workload Identity: the Google service account that a Kubernetes service account acts as.
ANNOTATION_GOOGLE_ACCOUNT = "iam.gke.io/gcp-service-account"
# GKE adds the Cloud Storage FUSE sidecar to pods that carry it.
ANNOTATION_FUSE = "gke-gcsfuse/volumes"
FUSE_DRIVER = "gcsfuse.csi.storage.gke.io"
# GKE's Secret Manager add-on: its provider and driver are not those of the open-source chart.
SECRETS_API = "secrets-store.csi.x-k8s.io/v1"
SECRETS_DRIVER = "secrets-store-gke.csi.k8s.io"
SECRETS_PROVIDER = "gke"

# The driver branch that auto-provisioning installs; without it GKE's default, which is too old for
# CUDA 13.
LABEL_DRIVER = "cloud.google.com/gke-gpu-driver-version"
DRIVER_LATEST = "latest"

# GKE's own count of reclaimed nodes; scaling down carries the same type, so its reason is left out.
INTERRUPTIONS_METRIC = "kubernetes_io:node_pool_interruption_count"
PREEMPTION_TYPE = "PreemptionEvent"
SCALE_DOWN_REASON = "AutoResize"


def preemptions(cluster: str) -> str:
    """Returns the PromQL selector of the preemptions of a cluster, by pool."""
    return (
        f'{INTERRUPTIONS_METRIC}{{monitored_resource="k8s_node_pool",cluster_name="{cluster}",'
        f'interruption_type="{PREEMPTION_TYPE}",interruption_reason!="{SCALE_DOWN_REASON}"}}'
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Priority:
    value: int
    preempts: bool
    what: str


PRIORITY_SPOT = "spot-workload-low"
PRIORITY_FLEX = "flex-workload"
PRIORITY_SERVING = "serving"
PRIORITY_OVERFLOW = "serving-overflow"
PRIORITY_PLATFORM = "platform"
# All are below the system classes at 2,000,000,000.
PRIORITIES = {
    PRIORITY_SPOT: Priority(
        value=-5,
        preempts=False,
        what="Work on Spot: yields to everything that says nothing",
    ),
    # A class of its own: a quota of GPUs counts the pods of a class.
    PRIORITY_OVERFLOW: Priority(
        value=-5,
        preempts=False,
        what="Online serving on Spot, above a base on demand",
    ),
    PRIORITY_FLEX: Priority(
        value=0,
        preempts=False,
        what="Work on flex-start: waits in Google's queue, preempts no other work",
    ),
    PRIORITY_SERVING: Priority(
        value=1_000,
        preempts=True,
        what="Online serving on demand",
    ),
    PRIORITY_PLATFORM: Priority(
        value=10_000,
        preempts=True,
        what="Exporter and maintenance",
    ),
}

SERVICE_PRIORITIES = (PRIORITY_SERVING, PRIORITY_OVERFLOW)

# `priority` of a job file -> its WorkloadPriorityClass. A normal job has none, and then the value
# of its pods: -5 or 0. The distances are larger than the mover's boosts.
PRIORITY_NORMAL = "normal"
JOB_PRIORITIES = {
    "low": Priority(
        value=-20,
        preempts=False,
        what="Starts after the other jobs of its team",
    ),
    "high": Priority(
        value=20,
        preempts=True,
        what="Starts before the other jobs of its team",
    ),
}


def name_job_priority(priority: str) -> str:
    """Returns the name of the WorkloadPriorityClass: `high` -> `job-high`."""
    return f"job-{priority}"
