"""Measures how fast a batch job goes, and what interruptions cost its workers. Pure.

The answer is that of `pace`, with items for steps, and the hours of one worker for those of a run.
"""

# Why it is so: infra/decisions/0179.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.ledger.batch import close_victims, count_in_hand, count_items
from holdfast.ledger.events import Event
from holdfast.ledger.pace import (
    FEWEST_WINDOWS,
    HOUR_US,
    Interruption,
    Pace,
    find_newest,
    find_spread,
    find_step_h,
)
from holdfast.ledger.processes import ProcessRun, process_runs, select_evictions
from holdfast.ledger.training import StepWindow


@dataclass(kw_only=True, slots=True)
class _Worker:
    run: ProcessRun
    windows: list[StepWindow]
    """Items of each commit, from the commit before it or the first claim."""
    machine_us: int
    """Time at which it got its node."""
    is_lost: bool

    @property
    def begins_us(self) -> int:
        """Time of its first claim."""
        return self.windows[0].begin_us

    @property
    def life_h(self) -> float:
        return max(0, self.run.ends_us - self.begins_us) / HOUR_US

    @property
    def machine_h(self) -> float:
        return max(0, self.run.ends_us - self.machine_us) / HOUR_US


def measure_batch(events: Sequence[Event], workers: int, share: float = 1.0) -> Pace | None:
    """Measures one job, whose events are in time order. None before it has stored twice.

    workers: how many take items. share: that of the workers whose events these are.
    """
    starts = _list_starts(events)
    staff = _list_workers(events)
    working = [worker for worker in staff if worker.windows]
    windows = [worker.windows for worker in working]
    commits: list[StepWindow] = []
    for worker in working:
        commits += worker.windows
    if len(commits) < FEWEST_WINDOWS or not starts:
        return None
    _mark_silent(working, workers)
    item_h = find_step_h(windows)
    first_start = starts[0]
    newest_start = starts[-1]
    total = float(newest_start.fields["steps"])
    done = _count_done(commits, newest_start.t_us)
    backlog = max(0.0, count_items(newest_start) - done / share)
    began_whole = count_items(first_start) == first_start.fields["steps"]
    billed_h = sum(worker.machine_h for worker in staff)
    return Pace(
        world_size=1,
        step=total - backlog,
        total_steps=total,
        step_h=item_h / workers,
        spread=find_spread(commits),
        save_every_h=max(window.end_us - window.begin_us for window in commits) / HOUR_US,
        closed_lives_h=_list_lives_h(working, is_lost=True),
        open_lives_h=_list_lives_h(working, is_lost=False),
        interruptions=tuple(_find_interruptions(working, item_h)),
        last_s=max(window.end_us for window in commits) / 1e6,
        down_since_s=_find_down_since_s(staff),
        complete=any(worker.run.exit_code == 0 for worker in staff),
        billed_h=billed_h / workers / share,
        billed_until_s=events[-1].t_us / 1e6,
        is_whole=began_whole and share == 1.0,
        capacity=find_newest(events, "capacity"),
        accelerator=find_newest(events, "accelerator"),
    )


def _list_starts(events: Iterable[Event]) -> list[Event]:
    """Returns the starts that say how many items the job has."""
    starts: list[Event] = []
    for event in events:
        if event.type == "start" and event.fields.get("steps"):
            starts.append(event)
    return starts


def _list_workers(events: Sequence[Event]) -> list[_Worker]:
    runs = process_runs(events)
    victims = close_victims(runs, select_evictions(events))
    evicted = {run.process for run in victims if run}
    scheduled_us: dict[str, int] = {}
    for event in events:
        if event.type == "scheduled":
            scheduled_us[event.process] = event.t_us
    workers: list[_Worker] = []
    for run in runs:
        # A process is called <pod>-<process id>-<random>.
        pod = run.process.rsplit("-", 2)[0]
        pod_us = scheduled_us.get(pod, run.begins_us)
        worker = _Worker(
            run=run,
            windows=_read_windows(run),
            machine_us=min(run.begins_us, pod_us),
            is_lost=run.process in evicted or bool(run.exit_code),
        )
        workers.append(worker)
    return workers


def _read_windows(run: ProcessRun) -> list[StepWindow]:
    windows: list[StepWindow] = []
    claims = run.select("claimed")
    before_us = claims[0].t_us if claims else run.begins_us
    count = 0
    for event in run.select("stored"):
        items = count_items(event)
        count += items
        if items:
            window = StepWindow(before_us, event.t_us, items, count)
            windows.append(window)
            before_us = event.t_us
    return windows


def _mark_silent(workers: Iterable[_Worker], limit: int) -> None:
    """Marks the workers beyond the limit that were silent for longest: they died without a line."""
    remaining = [worker for worker in workers if not worker.is_lost]
    remaining.sort(key=lambda worker: worker.run.ends_us, reverse=True)
    for worker in remaining[limit:]:
        worker.is_lost = True


def _list_lives_h(workers: Iterable[_Worker], *, is_lost: bool) -> tuple[float, ...]:
    return tuple(worker.life_h for worker in workers if worker.is_lost is is_lost)


def _count_done(commits: Iterable[StepWindow], since_us: int) -> int:
    count = 0
    for window in commits:
        if window.end_us >= since_us:
            count += window.steps
    return count


def _find_down_since_s(workers: Iterable[_Worker]) -> float | None:
    last_us = 0
    for worker in workers:
        run = worker.run
        if run.exit_code is None and not worker.is_lost:
            return None
        last_us = max(last_us, run.ends_us)
    return last_us / 1e6


def _find_interruptions(workers: Sequence[_Worker], item_h: float) -> Iterable[Interruption]:
    """Yields what each loss of a worker cost: the first worker that starts after it replaces it."""
    lost_workers = [worker for worker in workers if worker.is_lost]
    lost_workers.sort(key=lambda worker: worker.run.ends_us)
    candidates = iter(workers)
    for victim in lost_workers:
        ends_us = victim.run.ends_us
        for successor in candidates:
            if successor.run.begins_us <= ends_us:
                continue
            wait_us = max(0, successor.machine_us - ends_us)
            restart_us = max(0, successor.begins_us - successor.machine_us)
            yield Interruption(
                wait_h=wait_us / HOUR_US,
                restart_h=restart_us / HOUR_US,
                lost_h=count_in_hand(victim.run) * item_h,
            )
            break
