"""The kinds of capacity that Google sells and this platform places work on."""

from enum import StrEnum


class Capacity(StrEnum):
    """Values equal the node label cloud.google.com/gke-provisioning, but for on-demand and reserved
    ("standard").
    """

    ON_DEMAND = "on-demand"  # never reclaimed; the list price
    SPOT = "spot"  # reclaimed at any time with a notice of 30 s or 120 s
    FLEX_START = "flex-start"  # waits in a queue, then runs undisturbed, at most 7 days
    RESERVED = "reserved"  # of your own reservation: paid for whether it runs or not
    QUEUED = "queued"  # flex-start for a whole gang at once, through a ProvisioningRequest


# Kueue's queue for each. In it the ClusterQueue and the LocalQueue of every namespace have one
# name.
QUEUES = {
    Capacity.SPOT: "spot",
    Capacity.FLEX_START: "flex",
    Capacity.QUEUED: "queued",
    Capacity.ON_DEMAND: "on-demand",
    Capacity.RESERVED: "reserved",
}


class Placement(StrEnum):
    """What the decision matrix answers. HYBRID is an on-demand base with Spot overflow."""

    SPOT = "spot"
    FLEX_START = "flex-start"
    ON_DEMAND = "on-demand"
    HYBRID = "hybrid"


class PlacementRule(StrEnum):
    """Rows of the decision matrix. Defined by holdfast.place.matrix; cited by every manifest in
    ANNOTATION_RULE.
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
# On a Job or JobSet that may be moved between capacities: the label finds it, the annotation holds
# what was priced.
LABEL_MOVES = "holdfast.dev/moves"
ANNOTATION_PLAN = "holdfast.dev/placement-plan"
# On a JobSet on queued flex-start: how often it may go back to its queue, and for how many seconds
# after it was made.
LABEL_REQUEUES = "holdfast.dev/requeues"
ANNOTATION_REQUEUES_FOR = "holdfast.dev/requeues-for-seconds"
# On a JobSet that was moved, by the mover: where its pods may run, as it was before a queue wrote
# into it.
ANNOTATION_TEMPLATES = "holdfast.dev/pod-templates"
