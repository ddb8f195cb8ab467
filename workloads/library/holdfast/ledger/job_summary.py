"""Summarizes a job from its event lines: step, newest save, useful share, cost of evictions.

One answer for every command: `report`, `explain` and the drill show these figures. Shares, losses
and recoveries are those of the job's ledger. Pure, except `read_job_summaries`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holdfast.ledger.account import GangSize, Recovery, Restart
from holdfast.ledger.events import Event, read_folder
from holdfast.ledger.job_ledger import JobLedger, by_run, job_ledger
from holdfast.ledger.processes import ProcessRun, process_runs
from holdfast.ledger.timeline import State
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.telemetry import KIND_TRAINING

Runs = Sequence[Sequence[Event]]
"""Events of one job, run by run, each with at least one."""


class WrongResult(NamedTuple):
    """A process whose gradients of a step differed from those that others computed."""

    process: str
    step: int
    t_s: float
    """Unix time at which it was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSummary:
    """The state of a job at its last event; times in seconds. None: no line of the job shows it.

    If each index of a job trains apart, its runs are added up: `step` and `last_commit_s` are those
    of the run that is furthest behind.
    """

    job: str
    kind: str
    useful_ratio: float | None
    """Productive share of wall time, 0 to 1; for batch, of the wall time of all its workers."""
    step: int | None
    """The current step of training: after a restore, less than the highest step ever done."""
    last_commit_s: float | None
    """Unix time of the newest commit."""
    lost: int
    """Steps that were repeated because a later process restored a step before them; for batch,
    items.
    """
    recoveries: tuple[Recovery, ...]
    """One for each eviction: steps lost by it, seconds until work went on."""
    orderly_exits: int
    """Number of exits with 143 after a notice; of a gang, rank 0 counts."""
    size: GangSize | None = None
    """Size of an elastic gang at its last event, since it has had this number of nodes."""
    restarts: tuple[Restart, ...] = ()
    missing_node_s: float = 0.0
    """Time of the places that had no node while the others worked, added up."""
    wrong_results: tuple[WrongResult, ...] = ()

    def find_commit_age_s(self, now_s: float) -> float | None:
        if self.last_commit_s is None:
            return None
        return max(0.0, now_s - self.last_commit_s)

    @property
    def recovery_times_s(self) -> tuple[float, ...]:
        """Seconds until work went on, for the evictions after which it did, in their order."""
        seconds: list[float] = []
        for recovery in self.recoveries:
            if recovery.seconds is not None:
                seconds.append(recovery.seconds)
        return tuple(seconds)


def read_job_summaries(folder: Path) -> dict[str, JobSummary]:
    """Returns summaries by job, from every *.jsonl under a folder.

    Lines that cannot be used are skipped. Raises InputError if there are no files.
    """
    return job_summaries(read_folder(folder).events)


def job_summaries(events: Iterable[Event]) -> dict[str, JobSummary]:
    """Returns summaries by job. `events` are in time order.

    If one name has lines of both kinds, the kind with more of them counts.
    """
    runs_by_kind: dict[tuple[str, str], list[Sequence[Event]]] = defaultdict(list)
    for (job, _, kind), run_events in by_run(events).items():
        runs_by_kind[job, kind].append(run_events)
    runs_by_job: dict[str, Runs] = {}
    for (job, _), runs in runs_by_kind.items():
        if _count_lines(runs) > _count_lines(runs_by_job.get(job, ())):
            runs_by_job[job] = runs
    return {job: _summarize(runs) for job, runs in runs_by_job.items()}


def job_summary(events: Sequence[Event]) -> JobSummary:
    """Summarizes one job. `events` are in time order, at least one belongs to a job."""
    return _summarize(list(by_run(events).values()))


def _count_lines(runs: Runs) -> int:
    return sum(len(run) for run in runs)


def _summarize(runs: Runs) -> JobSummary:
    ledgers = [job_ledger(run) for run in runs]
    kind = ledgers[0].kind
    recoveries: list[Recovery] = []
    restarts: list[Restart] = []
    orderly_exits = 0
    repeated = 0
    missing_us = 0
    wrong_results: list[WrongResult] = []
    for ledger, run in zip(ledgers, runs, strict=True):
        recoveries += ledger.recoveries
        restarts += ledger.restarts
        orderly_exits += _count_orderly_exits(kind, process_runs(run))
        repeated += ledger.lost
        wrong_results += _list_wrong_results(run)
        missing_us += ledger.totals_us[State.DEGRADED]
    return JobSummary(
        job=ledgers[0].job,
        kind=kind,
        useful_ratio=_compute_useful_ratio(ledgers),
        step=_find_step(ledgers),
        last_commit_s=_find_last_commit_s(ledgers),
        lost=repeated,
        recoveries=tuple(sorted(recoveries, key=lambda recovery: recovery.t_us)),
        size=_find_present_size(ledgers),
        restarts=tuple(sorted(restarts)),
        missing_node_s=missing_us / 1e6,
        wrong_results=tuple(wrong_results),
        orderly_exits=orderly_exits,
    )


def _list_wrong_results(events: Iterable[Event]) -> list[WrongResult]:
    results: list[WrongResult] = []
    for event in events:
        if event.type == "miscomputed":
            step = int(event.fields.get("step") or 0)
            results.append(WrongResult(event.process, step, event.t_us / 1e6))
    return results


def _compute_useful_ratio(ledgers: Sequence[JobLedger]) -> float | None:
    wall_us = 0
    useful_us = 0
    for ledger in ledgers:
        wall_us += ledger.wall_us
        useful_us += ledger.useful_us
    return useful_us / wall_us if wall_us else None


def _find_last_commit_s(ledgers: Sequence[JobLedger]) -> float | None:
    """Returns the newest commit of the run that is furthest behind; None if a run has none."""
    commits_us: list[int] = []
    for ledger in ledgers:
        if not ledger.commits_us:
            return None
        commits_us.append(ledger.commits_us[-1])
    return min(commits_us) / 1e6


def _find_step(ledgers: Sequence[JobLedger]) -> int | None:
    """Returns the step of the run that is furthest behind; None if no run has done a step."""
    steps: list[int] = []
    for ledger in ledgers:
        if ledger.kind == KIND_TRAINING and ledger.progress:
            _, step, _ = ledger.progress[-1]
            steps.append(int(step))
    return min(steps, default=None)


def _count_orderly_exits(kind: str, runs: Iterable[ProcessRun]) -> int:
    """The ranks of a gang leave together, and count once; workers of a batch leave alone."""
    count = 0
    for run in runs:
        if run.exit_code == EXIT_PREEMPTED and (kind != KIND_TRAINING or run.rank == 0):
            count += 1
    return count


def _find_present_size(ledgers: Sequence[JobLedger]) -> GangSize | None:
    """Returns the last size, since the gang has had it.

    Nodes that join and leave at once make successive sizes that are equal.
    """
    present: GangSize | None = None
    for size in ledgers[-1].sizes:
        begin_us = size.begin_us
        if present and present.nodes == size.nodes and present.places == size.places:
            begin_us = present.begin_us
        present = size._replace(begin_us=begin_us)
    return present
