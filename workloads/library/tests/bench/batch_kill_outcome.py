"""What a kill matrix of batch workers must show, and whether it did."""

from dataclasses import dataclass, field

from holdfast.inference.worker.telemetry import Failpoint

MICRO_BATCH = 8
# Jobs in turn: as shipped (the next micro-batch is predicted, in a process, while one is committed), without that
# process, and with one micro-batch at stake.
MODES = ("shipped", "overlap", "strict")
GOALS = (
    "kills",
    "every_step_killed",
    "lost_0",
    "duplicated_0",
    "dead_lettered_0",
    "equal_to_uninterrupted",
    "a_kill_costs_what_is_uncommitted",
    "strict_kill_costs_one_micro_batch",
)


@dataclass(kw_only=True)
class Outcome:
    kills: int = 0
    by_step: dict[str, int] = field(default_factory=dict[str, int])
    items: int = 0
    lost: int = 0
    duplicated: int = 0
    dead_lettered: int = 0
    different: int = 0
    recomputed: int = 0
    worst_kill: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    """By mode: the items that one kill cost, predicted by the killed worker and not committed by it."""


def verdict(outcome: Outcome, kills: int) -> dict[str, bool]:
    held = (
        outcome.kills >= kills,
        all(outcome.by_step.get(step, 0) > 0 for step in (*Failpoint, "random")),
        outcome.lost == 0,
        outcome.duplicated == 0,
        outcome.dead_lettered == 0,
        outcome.different == 0,
        # The one being predicted and the one being committed; one alone where they do not overlap.
        max(outcome.worst_kill.values()) <= 2 * MICRO_BATCH,
        outcome.worst_kill["strict"] <= MICRO_BATCH,
    )
    return dict(zip(GOALS, held, strict=True))
