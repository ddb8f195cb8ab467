"""Names all environment variables of pods."""

ENV_JOB = "HOLDFAST_JOB"  # name of the Job, JobSet or Deployment; see job_identity
ENV_COMPLETION_INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes in every pod of an Indexed Job
ENV_ATTEMPT = "HOLDFAST_ATTEMPT"  # counts starts from 0; or counts to add up, as in 2+1
# crashes and evictions of one index, which Kubernetes counts apart; ENV_ATTEMPT adds them up
ENV_CHARGED_FAILURES = "HOLDFAST_CHARGED_FAILURES"
ENV_IGNORED_FAILURES = "HOLDFAST_IGNORED_FAILURES"  # the evictions
ENV_RUN = "HOLDFAST_RUN"  # for your own job: the run's name in the storage; its script reads it
# for your own job: URL of its checkpoints; its script reads it
ENV_CHECKPOINTS = "HOLDFAST_CHECKPOINTS"
# for your own job: URL of the folder for its results; its script reads it
ENV_OUTPUT = "HOLDFAST_OUTPUT"
# digest of the code that `source` of a job file names; commits of checkpoints hold it
ENV_SOURCE = "HOLDFAST_SOURCE"
ENV_POINT = "HOLDFAST_POINT"  # of a sweep: the number of the pod's point
# number of places of an elastic gang; only its pods have these four
ENV_GANG_NODES = "HOLDFAST_GANG_NODES"
ENV_GANG_MIN_NODES = (
    "HOLDFAST_GANG_MIN_NODES"  # with fewer nodes than this, the gang gives them back
)
ENV_GANG_ADDRESS = "HOLDFAST_GANG_ADDRESS"  # host of a place, with PLACE in it
PLACE = "{place}"
ENV_GANG_PORT = "HOLDFAST_GANG_PORT"  # port of every place; the next higher port is used, too
# failure domain of a sharded gang's node, as zone/rack
ENV_GANG_DOMAIN = "HOLDFAST_GANG_DOMAIN"
# set by `train ranks --sharded` for its ranks: where copies of their shards are kept
ENV_PEERS = "HOLDFAST_PEERS"
ENV_LOCAL_RANK = "LOCAL_RANK"  # torchrun's: which of the node's processes this is
ENV_LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"  # torchrun's: how many processes a node has
ENV_EVENTS = "HOLDFAST_EVENTS"  # path of the event file; empty: standard output
ENV_WINDOW_S = "HOLDFAST_WINDOW_SECONDS"  # the time that the pool grants an ordinary pod
ENV_DEADLINE = "HOLDFAST_DEADLINE"  # RFC 3339: planned end of the node or of the job
ENV_NODE = "HOLDFAST_NODE"  # spec.nodeName, where the pod may read its node's annotations
ENV_GPUS = (
    # the pod's nvidia.com/gpu limit: with it, the CPU is never used in place of a GPU
    "HOLDFAST_GPUS"
)
# where processes that react to notices leave their pids for the preStop drain
ENV_RUN_DIR = "HOLDFAST_RUN_DIR"
ENV_DATABASE = "HOLDFAST_DATABASE_URL"  # for batch, from a secret; withheld from predictors
ENV_SCHEMA_WAIT_S = (
    # how long to wait for a concurrent migration; unset: do not wait
    "HOLDFAST_SCHEMA_WAIT_SECONDS"
)
ENV_KEY_FILE = "HOLDFAST_CHECKPOINT_KEY_FILE"  # key that signs commits, from a secret
ENV_PLATFORM = "HOLDFAST_PLATFORM"  # for commands: path of the platform document, as --platform
ENV_TOKEN = "HOLDFAST_GOOGLE_TOKEN"  # for commands: OAuth token in place of gcloud's
# for commands: off, or the address of Compute Engine's beta API in place of Google's
ENV_CAPACITY_ADVICE = "HOLDFAST_CAPACITY_ADVICE"
ENV_TRACEBACK = "HOLDFAST_TRACEBACK"  # for bug reports: 1 makes commands print tracebacks
ENV_KILL_AT = "HOLDFAST_KILL_AT"  # tests only: POINT:COUNT, where a process dies

# Set by `checkpoints verify-exact` for the trainers that it starts: a file of instructions.
ENV_TRIAL = "HOLDFAST_TRIAL"
