"""Names the kinds of capacity that Google sells and this platform places work on."""

from enum import StrEnum


class Capacity(StrEnum):
    """A kind of capacity.

    Values equal the node label cloud.google.com/gke-provisioning, except on-demand and reserved,
    whose label is "standard".
    """

    ON_DEMAND = "on-demand"  # never reclaimed; the list price
    SPOT = "spot"  # reclaimed at any time with a notice of 30 s or 120 s
    FLEX_START = "flex-start"  # waits in a queue, then runs undisturbed, at most 7 days
    RESERVED = "reserved"  # your own reservation: paid for whether it runs or not
    QUEUED = "queued"  # flex-start for a whole gang at once, through a ProvisioningRequest

    @property
    def product(self) -> "Capacity":
        """The capacity as Google sells it, rates it and prices it."""
        return Capacity.FLEX_START if self is Capacity.QUEUED else self


# Google's ratings of how obtainable machines are now, from 0 to 1: from the first on they probably
# come, below the second they probably do not.
GOOD_RATING = 0.7
POOR_RATING = 0.4
# The exporter compares a rating with the machines that came within this time.
RATING_WINDOW_S = 600.0

# The queue of jobs that take any of several GPUs on Spot.
QUEUE_ANY = "any"
# Kueue's queue for each capacity. The ClusterQueue and all its LocalQueues have this name.
QUEUES = {
    Capacity.SPOT: "spot",
    Capacity.FLEX_START: "flex",
    Capacity.QUEUED: "queued",
    Capacity.ON_DEMAND: "on-demand",
    Capacity.RESERVED: "reserved",
}


class Placement(StrEnum):
    """An answer of the decision matrix. HYBRID is an on-demand base with Spot overflow."""

    SPOT = "spot"
    FLEX_START = "flex-start"
    ON_DEMAND = "on-demand"
    HYBRID = "hybrid"


class PlacementRule(StrEnum):
    """A row of the decision matrix.

    holdfast.place.matrix defines them; every manifest cites one in ANNOTATION_RULE.
    """

    PLATFORM = "platform"
    ONLINE = "online"
    INTERACTIVE = "interactive"
    NO_SLACK = "no-slack"
    DEADLINE = "deadline"
    DEADLINE_FIXED = "deadline-no-resume"
    FIXED = "no-resume"
    FIXED_LONG = "no-resume-long"
    ELASTIC = "elastic"
    SHARDED = "sharded"
    GANG = "gang"
    BATCH = "batch"
    TRAINING = "training"


# On every workload's object; written by manifests, read by the linter and by people.
ANNOTATION_RULE = "holdfast.dev/placement-rule"
# On a Job or JobSet that may be moved between capacities: the label selects it, the annotation
# holds its priced plan.
LABEL_MOVES = "holdfast.dev/moves"
ANNOTATION_PLAN = "holdfast.dev/placement-plan"
# On a JobSet on queued flex-start: how often it may return to its queue, and for how many seconds
# after its creation.
LABEL_REQUEUES = "holdfast.dev/requeues"
ANNOTATION_REQUEUES_FOR = "holdfast.dev/requeues-for-seconds"
# On the queued Job of a gang whose pods stay: the fewest nodes with which it works, and the seconds
# for which it waits below them. The mover reads both.
LABEL_LEAST_NODES = "holdfast.dev/least-nodes"
ANNOTATION_WAIT = "holdfast.dev/wait-seconds"
# On a Workload, by the mover: when a gang that gave its nodes back is queued again, and how often
# in a row it gave them back.
ANNOTATION_QUEUED_AGAIN = "holdfast.dev/queued-again-at"
ANNOTATION_GIVEN_BACK = "holdfast.dev/nodes-given-back"
# On a Job, by the mover: the job of higher priority that has some of its nodes.
ANNOTATION_YIELDED = "holdfast.dev/yielded-to"
# On a job: hours of undisturbed work, as its file says.
ANNOTATION_HOURS = "holdfast.dev/hours"
# On a job: dollars that it may cost; the mover stops it before.
ANNOTATION_MAX_USD = "holdfast.dev/max-usd"
# On a job with max-usd, written by the mover: dollars so far, and the Unix time up to which.
ANNOTATION_SPENT_USD = "holdfast.dev/spent"
# On a job that the platform stopped by itself: the field of its file that was the reason.
ANNOTATION_STOPPED_FOR = "holdfast.dev/stopped-for"
STOPPED_FOR_MAX_USD = "max_usd"
# On a job that ended, by the mover: what it cost.
ANNOTATION_RECEIPT = "holdfast.dev/receipt"
# On a Workload, by the mover: its order within its priority (for Kueue), and that its nodes ended.
ANNOTATION_BOOST = "kueue.x-k8s.io/priority-boost"
ANNOTATION_REQUEST_ENDED = "holdfast.dev/request-spent"
# On a JobSet, by the mover: its pod templates before a queue changed where they may run.
ANNOTATION_TEMPLATES = "holdfast.dev/pod-templates"
