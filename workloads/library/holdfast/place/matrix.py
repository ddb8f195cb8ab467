"""The decision matrix as data: it maps the traits of a workload to a capacity.

Rules are tried in order and the first match answers; every workload matches one. The matrix is the
answer without numbers: `holdfast place` computes the same question from prices and churn; if the
two disagree for a given job, `place` is right. The ids of rules are in the vocabulary, so that a
manifest can cite its rule without importing this package.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from holdfast.cost import prices
from holdfast.vocabulary.capacity import Capacity, Placement, PlacementRule
from holdfast.vocabulary.machines import ACCELERATORS


class Kind(StrEnum):
    PLATFORM = "platform"
    SERVING = "serving"
    INTERACTIVE = "interactive"
    BATCH = "batch"
    TRAINING = "training"


class Deadline(StrEnum):
    """The time to the deadline: LOOSE is TIGHT_SLACK times the undisturbed run time or more."""

    NONE = "none"
    LOOSE = "loose"
    TIGHT = "tight"

    @classmethod
    def of(cls, hours: float, deadline_h: float) -> "Deadline":
        # No deadline is neither loose nor tight: such a job may queue for days.
        if math.isinf(deadline_h):
            return cls.NONE
        return cls.LOOSE if deadline_h >= TIGHT_SLACK * hours else cls.TIGHT


# Below this ratio of time left to run time, one cold start per few hours already breaks the
# deadline.
TIGHT_SLACK = 1.1
# With 2 nodes elasticity saves 3 % on recorded capacity, with 4 already 5 %, with 16 30 %.
WORTH_ELASTIC = 4
_DISCOUNTED = {Placement.SPOT: Capacity.SPOT, Placement.FLEX_START: Capacity.FLEX_START}


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """The traits of a workload that decide."""

    kind: Kind
    resumable: bool = True
    """Another machine can go on where this one stopped."""
    nodes: int = 1
    """Number of nodes that must run at the same time."""
    elastic: bool = False
    """A gang whose other nodes go on without a lost one: each holds the whole state."""
    sharded: bool = False
    """A gang whose other nodes stay for a lost one, with copies of the state's shards in memory."""
    deadline: Deadline = Deadline.NONE
    beyond_flex: bool = False
    """One uninterrupted run would outlive a flex-start node (7 days)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    id: PlacementRule
    scenario: str
    placement: Placement
    reason: str
    source: str
    """The document or command that shows the reason."""
    when: Callable[[Traits], bool]

    @property
    def discount(self) -> str:
        # How many of its hours are Spot hours is known only afterwards.
        if self.placement is Placement.HYBRID:
            return "on the Spot part"
        capacity = _DISCOUNTED.get(self.placement)
        return describe_discount(capacity) if capacity else "none"


@cache
def describe_discount(capacity: Capacity) -> str:
    """Return the least and the largest discount of the price table against on-demand, by GPU and
    region.
    """
    table = prices.load()
    discounts: list[float] = []
    for accelerator in ACCELERATORS:
        machine = prices.reference_machine(accelerator)
        for region in table.regions(accelerator):
            quote = table.quote(machine, region, capacity)
            on_demand = table.quote(machine, region, Capacity.ON_DEMAND)
            if quote and on_demand:
                discounts.append(1 - quote.usd / on_demand.usd)
    # Rounded down: a slogan must not promise more than the table has.
    low = math.floor(100 * min(discounts))
    high = math.floor(100 * max(discounts))
    return f"{low} to {high}%"


RULES: tuple[Rule, ...] = (
    Rule(
        id=PlacementRule.PLATFORM,
        placement=Placement.ON_DEMAND,
        scenario="Controllers, queues, monitoring, add-ons",
        reason=(
            "every recovery goes through them: evicted together with the work, nothing is left to"
            " restart it"
        ),
        source="the rules of the platform: system pods never on Spot",
        when=lambda w: w.kind is Kind.PLATFORM,
    ),
    Rule(
        id=PlacementRule.ONLINE,
        placement=Placement.HYBRID,
        scenario="Online inference",
        reason=(
            "a request cannot wait for a node: the on-demand base carries the promise, Spot the"
            " overflow"
        ),
        source="GKE: ComputeClass priorities",
        when=lambda w: w.kind is Kind.SERVING,
    ),
    Rule(
        id=PlacementRule.INTERACTIVE,
        placement=Placement.ON_DEMAND,
        scenario="Notebooks, debugging",
        reason="a person waits, and what is in memory is in no checkpoint",
        source="GKE: Spot VMs, no guarantee of capacity",
        when=lambda w: w.kind is Kind.INTERACTIVE,
    ),
    Rule(
        id=PlacementRule.NO_SLACK,
        placement=Placement.ON_DEMAND,
        scenario=f"Deadline with less than {TIGHT_SLACK - 1:.0%} slack",
        reason="neither a queue nor an eviction fits in the time that is left",
        source="holdfast place --deadline",
        when=lambda w: w.deadline is Deadline.TIGHT,
    ),
    Rule(
        id=PlacementRule.DEADLINE_FIXED,
        placement=Placement.ON_DEMAND,
        scenario="Deadline, cannot resume",
        reason="flex-start may queue without end, and one eviction starts the run over",
        source="GKE: flex-start requests have no promised start",
        when=lambda w: not w.resumable and w.deadline is not Deadline.NONE,
    ),
    Rule(
        id=PlacementRule.DEADLINE,
        placement=Placement.HYBRID,
        scenario="Deadline with slack, resumable",
        reason=(
            "Spot while progress is ahead, on-demand from the hour at which only it still arrives"
            " in time"
        ),
        source="holdfast place --deadline",
        when=lambda w: w.deadline is Deadline.LOOSE,
    ),
    Rule(
        id=PlacementRule.FIXED_LONG,
        placement=Placement.ON_DEMAND,
        scenario="Cannot resume, longer than 7 days",
        reason="flex-start nodes end after 7 days, Spot loses the whole run",
        source="GKE: flex-start, max run duration 604800 s",
        when=lambda w: not w.resumable and w.beyond_flex,
    ),
    Rule(
        id=PlacementRule.FIXED,
        placement=Placement.FLEX_START,
        scenario="Cannot resume, up to 7 days",
        reason="waits once, then runs undisturbed; on Spot each eviction costs the whole run",
        source="closed form without checkpoints: M (e^(W/M) - 1)",
        when=lambda w: not w.resumable,
    ),
    Rule(
        id=PlacementRule.ELASTIC,
        placement=Placement.SPOT,
        scenario=f"Training on {WORTH_ELASTIC} nodes or more, each with the whole state",
        reason=(
            "an elastic gang loses the missing node's share only; with 2 nodes or 3 that saves"
            " little"
        ),
        source="closed form of gangs; decision 0035 of Holdfast",
        when=lambda w: w.kind is Kind.TRAINING and w.elastic and w.nodes >= WORTH_ELASTIC,
    ),
    Rule(
        id=PlacementRule.SHARDED,
        placement=Placement.SPOT,
        scenario="Training with state sharded over nodes, `sharded: true`",
        reason=(
            "a loss costs the steps since the newest copy in memory, not an upload interval; with"
            " `nodes: 4..8` the others go on, else they stay and are billed"
        ),
        source="decision 0115 of Holdfast",
        when=lambda w: w.kind is Kind.TRAINING and w.sharded and w.nodes >= 2,
    ),
    Rule(
        id=PlacementRule.GANG,
        placement=Placement.FLEX_START,
        scenario="Training on 2 or 3 nodes at once, or a rigid gang with state sharded over nodes",
        reason=(
            "all nodes arrive together; on Spot one loss stops all, and the survivors are billed"
            " while they wait"
        ),
        source="closed form of gangs; GKE: queued provisioning",
        when=lambda w: w.kind is Kind.TRAINING and w.nodes >= 2,
    ),
    Rule(
        id=PlacementRule.BATCH,
        placement=Placement.SPOT,
        scenario="Batch inference from a queue",
        reason=(
            "an eviction loses one micro-batch, so churn hardly matters and the discount is kept"
        ),
        source="holdfast place --checkpoint queue",
        when=lambda w: w.kind is Kind.BATCH,
    ),
    Rule(
        id=PlacementRule.TRAINING,
        placement=Placement.SPOT,
        scenario="Training or fine-tuning with checkpoints",
        reason=(
            "cheapest while evictions stay under the flip point that `place` prints; above it"
            " flex-start"
        ),
        source="holdfast place; Young 1974, Daly 2006",
        when=lambda _: True,
    ),
)


def decide(traits: Traits) -> Rule:
    """Return the first rule that matches; the last rule matches everything."""
    # No default after the loop: traits without a rule must fail in the tests, not run
    # somewhere.
    return next(rule for rule in RULES if rule.when(traits))


def as_json() -> dict[str, object]:
    rows: list[dict[str, str]] = []
    for rule in RULES:
        rows.append(
            {
                "rule": rule.id.value,
                "scenario": rule.scenario,
                "placement": rule.placement.value,
                "discount": rule.discount,
                "reason": rule.reason,
                "source": rule.source,
            }
        )
    return {"schema": "holdfast.matrix/1", "rows": rows}
