"""What the event lines of a job show of it: step, newest save, useful share, what evictions cost.

One answer for every command: `report`, `explain`, `list` and the drill show these figures. Shares, losses and
recoveries are those of the job's ledger. Pure but for `read_job_summaries`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.telemetry import KIND_TRAINING
from monitoring.ledger.account import Recovery
from monitoring.ledger.events import Event, read_folder
from monitoring.ledger.job_ledger import JobLedger, by_job, job_ledger
from monitoring.ledger.processes import ProcessRun, process_runs


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSummary:
    """Up to the job's last event; times in seconds. None where no line of the job shows it."""

    job: str
    kind: str
    begin_s: float
    """Unix time of the first event."""
    end_s: float
    """Unix time of the last event."""
    useful_ratio: float | None
    """Productive share of wall time, 0 to 1; for batch of the wall time of all its workers."""
    step: int | None
    """Where training stands now: after a restore less than the highest step ever done."""
    last_commit_s: float | None
    """Unix time of the newest commit."""
    lost: int
    """Steps that were done again because a later process restored a step before them; for batch, items."""
    recoveries: tuple[Recovery, ...]
    """One for each eviction: steps lost by it, seconds until work went on."""
    orderly_exits: int
    """Times that it left with exit 143 after a notice; of a gang, rank 0 counts."""

    def saved_age_s(self, now_s: float) -> float | None:
        return None if self.last_commit_s is None else max(0.0, now_s - self.last_commit_s)

    @property
    def lost_by_eviction(self) -> tuple[int, ...]:
        return tuple(recovery.lost_steps for recovery in self.recoveries)

    @property
    def recovered_after_s(self) -> tuple[float, ...]:
        """Of those evictions after which work went on, in their order."""
        return tuple(recovery.seconds for recovery in self.recoveries if recovery.seconds is not None)


def read_job_summaries(folder: Path) -> dict[str, JobSummary]:
    """By job, from every *.jsonl under a folder; lines that cannot be used are passed over. InputError without files."""
    return job_summaries(read_folder(folder).events)


def job_summaries(events: Iterable[Event]) -> dict[str, JobSummary]:
    """`events`: in time order. Where one name has lines of both kinds, the kind with more of them counts."""
    found: dict[str, Sequence[Event]] = {}
    for (job, _), rows in by_job(events).items():
        if len(rows) > len(found.get(job, ())):
            found[job] = rows
    return {job: job_summary(rows) for job, rows in found.items()}


def job_summary(events: Sequence[Event]) -> JobSummary:
    """`events`: of one job, in time order, at least one."""
    ledger = job_ledger(events)
    commits = ledger.account.commits_us
    return JobSummary(
        job=ledger.job,
        kind=ledger.kind,
        begin_s=ledger.begin_us / 1e6,
        end_s=ledger.end_us / 1e6,
        useful_ratio=ledger.goodput if ledger.wall_us else None,
        step=_step(ledger),
        last_commit_s=commits[-1] / 1e6 if commits else None,
        lost=ledger.account.lost,
        recoveries=ledger.recoveries,
        orderly_exits=_orderly_exits(ledger.kind, process_runs(events)),
    )


def _orderly_exits(kind: str, runs: Iterable[ProcessRun]) -> int:
    """The ranks of a gang leave together, workers of a batch alone."""
    return sum(run.exit_code == EXIT_PREEMPTED and (kind != KIND_TRAINING or run.rank == 0) for run in runs)


def _step(ledger: JobLedger) -> int | None:
    return int(ledger.account.progress[-1][1]) if ledger.kind == KIND_TRAINING and ledger.account.progress else None
