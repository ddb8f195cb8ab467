"""The alerts, as data: what is asked, from which value on, for how long, and why anybody should wake up."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from holdfast.contract.errors import InputError
from holdfast.contract.kubernetes import preemptions
from monitoring.alerting.alert import DEAD_LETTERS, HOUR, Alert, AlertSource, Severity, Values, filled, grew, ours
from monitoring.alerting.capacity_alerts import CAPACITY, GPUS, QUEUES
from monitoring.alerting.serving_alerts import SERVING

MOST_REFUSED = 10  # lines an hour; a pod that is killed in the middle of a line leaves one


def alerts(values: Values, modules: Sequence[str] = ()) -> tuple[Alert, ...]:
    """Those of the platform, then those of `modules`, with `values` in their queries.

    Raises InputError for a module that adds none that can be used.
    """
    added = tuple(alert for module in modules for alert in _of_module(module))
    every = [replace(alert, query=filled(alert.query, values)) for alert in (*OF_THE_PLATFORM, *added)]
    names = [alert.name for alert in every]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError("alerts.modules: names", got=", ".join(twice), allowed="each name once", fix="rename yours")
    return tuple(every)


def _of_module(module: str) -> tuple[Alert, ...]:
    allowed = "a module with `def alerts() -> Iterable[Alert]`, each with query and runbook"
    try:
        found = tuple(import_module(module).alerts())
    except (ImportError, AttributeError, TypeError) as error:
        got, fix = f"{module}: {error}", "correct the name, or install what it needs"
        raise InputError("alerts.modules", got=got, allowed=allowed, fix=fix) from error
    wrong = [each for each in found if not (isinstance(each, Alert) and each.query and each.runbook)]
    if wrong or not found:
        got = f"{module}: {getattr(wrong[0], 'name', wrong[0]) if wrong else 'no alert'}"
        raise InputError("alerts.modules", got=got, allowed=allowed, fix="give each alert a query and a runbook")
    return found


_AGE = ours("last_commit_age_seconds")
_WORK = (
    Alert(
        name="HoldfastNoRecentCommit",
        severity=Severity.PAGE,
        why="no checkpoint was committed for two intervals: the next preemption loses more work than planned",
        query=(
            # Aggregated, or the second half would be a second alert.
            f"max by (namespace, job, index) ({_AGE} > on (namespace, job, index) 2 * {ours('commit_interval_seconds')} > 120 "
            f"or {_AGE} > $checkpoint_age_s)"
        ),
        hold_s=120,
    ),
    Alert(
        name="HoldfastRestoreSkippedCheckpoint",
        severity=Severity.TICKET,
        why="a committed checkpoint failed verification: the storage or a writer damages data",
        query=grew(ours("restores_skipped_total"), "namespace, job", "1h"),
    ),
    Alert(
        name="HoldfastGoodputBelowBreakEven",
        severity=Severity.TICKET,
        why="the job loses so much time that Spot now costs more than on-demand",
        # Of the time on machines: a wait for capacity costs nothing and has alerts of its own.
        query=f"{ours('useful_paid_ratio')} < $goodput_min",
        hold_s=1_800,
    ),
    Alert(
        name="HoldfastGangBelowSize",
        severity=Severity.TICKET,
        why="an elastic gang has run with missing nodes for longer than the limit for pending Spot capacity",
        query=f"{ours('gang_below_size_seconds')} > $spot_pending_s",
        hold_s=300,
    ),
    Alert(
        name="HoldfastLossNotFinite",
        severity=Severity.TICKET,
        why="the loss of a training job is NaN or infinite: it goes on, and what it computes is worth nothing",
        query=f"{ours('loss_not_finite')} > 0",
        hold_s=300,
    ),
    Alert(
        name="HoldfastRankSlow",
        severity=Severity.TICKET,
        why="one rank of a gang is much slower than the others: they all wait for it in every step",
        query=f"{ours('slowest_rank_ratio')} > 1.5",
        hold_s=600,
    ),
    Alert(
        name="HoldfastRestartsWithoutProgress",
        severity=Severity.PAGE,
        why="the job crashes repeatedly without progress: a bug wastes money until someone fixes it",
        query=f"{ours('fruitless_restarts')} >= 3",
    ),
)


_BATCH = (
    Alert(
        name="HoldfastBacklogPastDeadline",
        severity=Severity.TICKET,
        why="the oldest item has waited longer than the deadline for results",
        query=f"max by (job) ({ours('batch_oldest_seconds')}) > $batch_oldest_s",
        hold_s=300,
    ),
    Alert(
        name="HoldfastDeadLetters",
        severity=Severity.TICKET,
        why="items failed too often and have no result; preemptions do not count as failures",
        query=f"max by (subscription_id) ({DEAD_LETTERS}) > 0 or {grew(ours('dead_letters_total'), 'namespace, job', '1h')}",
    ),
    Alert(
        name="HoldfastResultsDatabaseErrors",
        severity=Severity.PAGE,
        why="results cannot be stored: the workers run, but their work is lost",
        query=grew(ours("batch_failures_total", 'error_class="database"'), "namespace, job", "10m", more_than=5),
    ),
)


_LOST = preemptions("$cluster")
_HEARTBEAT = ours("exporter_heartbeat_seconds")
_PLATFORM = (
    Alert(
        name="HoldfastSystemPodsOnSpot",
        severity=Severity.TICKET,
        why="system pods run on preemptible nodes: a preemption would stop services that the cluster needs",
        query=f"max by (namespace) ({ours('system_pods_on_interruptible')}) > 0",
        hold_s=600,
    ),
    Alert(
        name="HoldfastSilentNodeHoldsPods",
        severity=Severity.TICKET,
        why="a node stopped reporting and still holds pods of jobs: these jobs wait until the pods are gone",
        query=f"max by (namespace) ({ours('silent_node_pods')}) > 0",
        hold_s=300,
    ),
    Alert(
        name="HoldfastDisruptionBudgetViolated",
        severity=Severity.TICKET,
        why="fewer pods are healthy than the disruption budget requires; the budget does not stop Spot preemptions",
        query=f"max by (namespace, budget) ({ours('disruption_budget_shortfall')}) > 0",
        hold_s=600,
    ),
    Alert(
        name="HoldfastMonitoringSilent",
        severity=Severity.PAGE,
        why="the exporter is down or unreachable: no alert about jobs can fire",
        query=(
            f"absent_over_time({_HEARTBEAT}[${{heartbeat_s}}s]) "
            f"or time() - max by (cluster_name) ({_HEARTBEAT}) > $heartbeat_s"
        ),
        hold_s=60,
    ),
    Alert(
        name="HoldfastEventLinesRefused",
        severity=Severity.TICKET,
        why="a pod writes event lines that are invalid or name another job: reports about it are incomplete",
        query=grew(ours("event_lines_refused_total"), "namespace, job, reason", "1h", more_than=MOST_REFUSED),
    ),
    Alert(
        name="HoldfastPreemptionCountsDisagree",
        severity=Severity.TICKET,
        why="GKE and the exporter count different numbers of preemptions: placement advice or alerts are wrong",
        # infra/decisions/0071
        query=(
            f"abs((sum(sum_over_time({_LOST}[2h])) or vector(0)) "
            f"- (sum(increase({ours('preemptions_total')}[2h])) or vector(0))) > 3"
        ),
        hold_s=HOUR,
    ),
    Alert(
        name="HoldfastSpendOverBudget",
        severity=Severity.TICKET,
        why="this month's costs passed a budget threshold; a budget only warns, it stops nothing",
        source=AlertSource.BUDGET,
    ),
)
# In this order the runbook has a section for each.
OF_THE_PLATFORM = (*CAPACITY, *QUEUES, *GPUS, *_WORK, *_BATCH, *SERVING, *_PLATFORM)
