"""Types of the event lines and names of the metrics.

An event is one JSON object a line: `v` (schema version), `t` (Unix seconds, float), `event` (a type
below), `job` and, where each index of a Job trains apart, `index` (job_identity.py), `kind` (training, batch or serving),
`process` (unique for each process), and the fields of its type.
"""

EVENT_VERSION = 1

# type -> fields it carries in addition to the common ones. A reader ignores types and fields that it does not know.
EVENTS: dict[str, tuple[str, ...]] = {
    "start": ("rank", "world_size", "attempt"),  # process begins; `attempt` counts launches of the job from 0
    "startup": ("phases",),  # seconds of each part of a start, from the process to the first step; see bench-training
    # state loaded (step 0: nothing to load); skipped: [[step, reason]]; source: store, or memory of a sharded gang's nodes
    "restore": ("step", "seconds", "skipped", "source"),
    # steps done since the last such line; of a gang: also which rank (of an elastic gang: place) is slowest, and by how many times the others' pace
    "window": ("first_step", "last_step", "seconds", "loss", "slowest_rank", "slowest_by"),
    "save": ("step", "blocking_seconds", "bytes"),  # staged; the upload goes on in the background
    "commit": ("step", "seconds", "bytes"),  # durable; seconds since its save began
    "save_failed": ("step", "reason"),
    # Of these that a watcher writes, `namespace` is that of the job.
    # Written by the evictor (drill, demo) or by an observer (the node watcher).
    "evict": ("signal", "target", "namespace"),
    "stop": ("step", "reason"),  # the ranks agreed to stop after this step
    # An elastic gang went on with this number of its nodes, after a stall.
    "resized": ("step", "nodes", "of", "seconds"),
    "exit": ("code", "step"),
    "claimed": ("items",),  # batch: leased from the queue
    "stored": ("items", "seconds"),  # batch: rows committed
    "acked": ("items",),
    "released": ("items",),  # batch: given back unprocessed
    "overdue": ("items", "seconds"),  # batch: a micro-batch without an answer after so long; it is still awaited
    "retrying": ("source",),  # batch: the database or the queue refused a call, which is made again
    "item_failed": ("item", "error_class", "failures"),
    "dead_lettered": ("item", "reason"),
    # Written by the node watcher (the exporter) and the mover, read by the ledger and the churn estimate.
    # A pod of the job got its node after so long.
    "scheduled": ("seconds", "node", "pool", "capacity", "accelerator", "namespace"),
    "admitted": ("seconds", "queue", "flavor", "accelerator"),  # Kueue started a job after so long in its queue
    "moved": ("source", "capacity", "reason", "namespace"),  # the mover sent the job from one queue to another
    # seconds: its age when the watcher first saw it
    "node_up": ("node", "pool", "zone", "machine_type", "capacity", "seconds"),
    "node_down": ("node", "pool", "zone", "machine_type", "capacity", "reason", "seconds"),  # seconds: its age
    # The mover found a broken GPU on a Spot node. answer: replaced, or reported
    "node_faulty": ("node", "pool", "zone", "machine_type", "capacity", "fault", "answer"),
}

KIND_TRAINING = "training"
KIND_BATCH = "batch"
KIND_SERVING = "serving"  # of drills only: servers write no event lines
KIND_NODE = "node"  # lines about a machine, which belong to no job

# NVIDIA's exporter on each GPU node: scraped for alerts, and asked by the mover.
GPU_EXPORTER, GPU_EXPORTER_NAMESPACE, GPU_EXPORTER_PORT = "dcgm-exporter", "gpu-metrics", 9_400
# DCGM_FI_DEV_* -> (type for Prometheus, help). All that alerts and dashboards read of a device, and all that is collected.
GPU_FIELDS: dict[str, tuple[str, str]] = {
    "XID_ERRORS": ("gauge", "code of the last Xid error"),
    # Managed Prometheus counts a counter from its first sample on; the alert needs what was counted before, too.
    "ECC_DBE_VOL_TOTAL": ("gauge", "double-bit errors since the driver was loaded"),
    "ROW_REMAP_FAILURE": ("gauge", "1: a row of memory could not be replaced"),
    "THERMAL_VIOLATION": ("counter", "time slowed down by heat"),
}

METRIC_PREFIX = "custom.googleapis.com/holdfast"
# Name -> help; times are in seconds, and their names say so. The exporter serves them to Prometheus with '/' as '_' and the prefix `holdfast_`.
METRICS: dict[str, str] = {
    "preemptions_total": "preempted Spot nodes, by pool and zone",
    # Written together, read by the churn estimate. age_h: lower end of the band of node age, in hours.
    "spot_node_seconds_total": "time that Spot nodes were at risk, by pool, machine_type, zone and age_h",
    "spot_node_losses_total": "lost Spot nodes, by pool, machine_type, zone and age_h",
    "goodput_ratio": "productive share of wall time, by namespace and job",
    "useful_paid_ratio": "productive share of the time on machines: without waits for capacity, by namespace and job",
    "gang_below_size_seconds": "since when an elastic gang has fewer nodes than places, by namespace and job; 0: it has all",
    "last_commit_age_seconds": "seconds of computing since the newest committed checkpoint, by namespace and job",
    "pending_seconds": "how long the oldest unschedulable pod has waited, by capacity and accelerator",
    # Jobs that wait without a pod, in Kueue or in Google's queue.
    "queue_wait_seconds": "longest wait of a job that Kueue has not started, by queue, flavor, accelerator, reason",
    "queue_pending_workloads": "jobs that wait for quota, by queue",
    "queue_started_workloads": "jobs that hold quota and have not finished, by queue",
    "provisioning_requests_lost_total": "ProvisioningRequests that failed, expired or were revoked, by reason",
    "batch_backlog_items": "items not yet done, by job",
    "batch_oldest_seconds": "age of the oldest item not yet done, by job",
    "batch_replicas_wanted": "workers needed to meet the deadline, by job",
    "node_end_seconds": "seconds until the planned end of a job's nodes, by namespace and job",
    "commit_interval_seconds": "usual time between commits, of jobs whose present attempt owes one, by namespace and job",
    "restores_skipped_total": "damaged checkpoints that a restore went past, by namespace and job",
    "loss_not_finite": "1 while the newest loss of a training job is no finite number, by namespace and job",
    "slowest_rank_ratio": "time of the slowest rank of a gang by that of the others, up to their exchange, by namespace and job",
    "fruitless_restarts": "crashes in a row without a new commit or result; evictions do not count, by namespace and job",
    "dead_letters_total": "items given up, by namespace and job",
    "batch_failures_total": "items that failed and were tried again, by namespace, job and class of error",
    "system_pods_on_interruptible": "system pods, other than DaemonSets, on nodes that can be preempted",
    "silent_node_pods": "pods of jobs on nodes that stopped reporting, by namespace",
    "gpu_faults_total": "Spot nodes found with a broken GPU, by pool, fault and answer: replaced or reported",
    "disruption_budget_shortfall": "pods missing from what a PodDisruptionBudget wants, by namespace and budget",
    "event_lines_refused_total": "lines that no account can use, by namespace and job of the pod that wrote them, and reason",
    "placement_moves_total": "moves of a job between capacities, by namespace, job and capacity that it was sent to",
    "exporter_heartbeat_seconds": "Unix time of the exporter's last full pass",
}
