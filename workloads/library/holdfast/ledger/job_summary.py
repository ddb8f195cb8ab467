"""What the event lines of a job show of it: step, newest save, useful share, what evictions cost.

One answer for every command: `report`, `explain` and the drill show these figures. Shares, losses
and recoveries are those of the job's ledger. Pure but for `read_job_summaries`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.ledger.account import GangSize, Recovery, Restart
from holdfast.ledger.events import Event, read_folder
from holdfast.ledger.job_ledger import JobLedger, by_run, job_ledger
from holdfast.ledger.processes import ProcessRun, process_runs
from holdfast.ledger.timeline import State
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.telemetry import KIND_TRAINING


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSummary:
    """Up to the job's last event; times in seconds. None where no line of the job shows it.

    Where each index of a job trains apart, its runs are added up: `step` and `last_commit_s` are
    those of the run that is furthest behind.
    """

    job: str
    kind: str
    useful_ratio: float | None
    """Productive share of wall time, 0 to 1; for batch of the wall time of all its workers."""
    step: int | None
    """The step of training now: after a restore less than the highest step ever done."""
    last_commit_s: float | None
    """Unix time of the newest commit."""
    lost: int
    """Steps that were done again because a later process restored a step before them; for batch,
    items.
    """
    recoveries: tuple[Recovery, ...]
    """One for each eviction: steps lost by it, seconds until work went on."""
    orderly_exits: int
    """Times that it left with exit 143 after a notice; of a gang, rank 0 counts."""
    size: GangSize | None = None
    """Of an elastic gang at its last event, since it has had this number of nodes."""
    restarts: tuple[Restart, ...] = ()
    missing_node_s: float = 0.0
    """Time of the places that had no node while the others worked, added up."""

    def saved_age_s(self, now_s: float) -> float | None:
        if self.last_commit_s is None:
            return None
        return max(0.0, now_s - self.last_commit_s)

    @property
    def recovered_after_s(self) -> tuple[float, ...]:
        """Of those evictions after which work went on, in their order."""
        return tuple(
            recovery.seconds for recovery in self.recoveries if recovery.seconds is not None
        )


def read_job_summaries(folder: Path) -> dict[str, JobSummary]:
    """By job, from every *.jsonl under a folder; lines that cannot be used are passed over.
    InputError without files.
    """
    return job_summaries(read_folder(folder).events)


def job_summaries(events: Iterable[Event]) -> dict[str, JobSummary]:
    """`events`: in time order. Where one name has lines of both kinds, the kind with more of them
    counts.
    """
    runs: dict[tuple[str, str], list[Sequence[Event]]] = defaultdict(list)
    for (job, _, kind), rows in by_run(events).items():
        runs[job, kind].append(rows)
    found: dict[str, list[Sequence[Event]]] = {}
    for (job, _), each in runs.items():
        if _lines(each) > _lines(found.get(job, ())):
            found[job] = each
    return {job: _summary(each) for job, each in found.items()}


def job_summary(events: Sequence[Event]) -> JobSummary:
    """`events`: of one job, in time order, at least one that belongs to a job."""
    return _summary(list(by_run(events).values()))


def _lines(runs: Iterable[Sequence[Event]]) -> int:
    return sum(map(len, runs))


def _summary(runs: Sequence[Sequence[Event]]) -> JobSummary:
    """`runs`: events of one job, run by run, each with at least one."""
    ledgers = [job_ledger(rows) for rows in runs]
    wall_us = sum(ledger.wall_us for ledger in ledgers)
    steps = [_step(ledger) for ledger in ledgers]
    commits = [ledger.commits_us[-1:] for ledger in ledgers]
    return JobSummary(
        job=ledgers[0].job,
        kind=ledgers[0].kind,
        useful_ratio=sum(ledger.useful_us for ledger in ledgers) / wall_us if wall_us else None,
        step=min((step for step in steps if step is not None), default=None),
        last_commit_s=min(newest for [newest] in commits) / 1e6 if all(commits) else None,
        lost=sum(ledger.lost for ledger in ledgers),
        recoveries=tuple(
            sorted((r for ledger in ledgers for r in ledger.recoveries), key=lambda r: r.t_us)
        ),
        size=_present_size(ledgers),
        restarts=tuple(sorted(each for ledger in ledgers for each in ledger.restarts)),
        missing_node_s=sum(ledger.totals_us[State.DEGRADED] for ledger in ledgers) / 1e6,
        orderly_exits=sum(_orderly_exits(ledgers[0].kind, process_runs(rows)) for rows in runs),
    )


def _orderly_exits(kind: str, runs: Iterable[ProcessRun]) -> int:
    """The ranks of a gang leave together, workers of a batch alone."""
    return sum(
        run.exit_code == EXIT_PREEMPTED and (kind != KIND_TRAINING or run.rank == 0) for run in runs
    )


def _present_size(ledgers: Sequence[JobLedger]) -> GangSize | None:
    """Newcomers and leavers at once make sizes that follow each other and are equal."""
    present: GangSize | None = None
    for size in ledgers[-1].sizes:
        same = present and (present.nodes, present.places) == (size.nodes, size.places)
        present = size._replace(begin_us=present.begin_us) if present and same else size
    return present


def _step(ledger: JobLedger) -> int | None:
    if ledger.kind == KIND_TRAINING and ledger.progress:
        return int(ledger.progress[-1][1])
    return None
