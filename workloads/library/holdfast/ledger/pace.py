"""Measures how fast a training run goes, and what its interruptions cost: what a forecast needs.

An interruption is an attempt of rank 0 that another attempt followed, whatever ended it: an
eviction, a crash or a restart of the gang. Pure.
"""

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.ledger.events import Event
from holdfast.ledger.processes import ProcessRun, process_runs, select_evictions
from holdfast.ledger.training import StepWindow, close_killed_runs, read_windows, select_leads

FEWEST_WINDOWS = 2
LEAST_SPREAD = 0.005
HOUR_US = 3.6e9


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Interruption:
    """The hours that an interruption cost."""

    wait_h: float
    """Wait without a machine, until the next attempt."""
    restart_h: float
    """Time of the next attempt before its first step."""
    lost_h: float
    """Work that was done again, at the usual pace."""


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Pace:
    """The state of a run at its last event."""

    world_size: int
    step: float
    """The last step that is done: after a restore, the step that was restored."""
    total_steps: float | None
    """Steps of the whole run, if its program says so."""
    step_h: float
    """Hours of a step while the run computes, with what saves block."""
    spread: float
    """Relative standard error of `step_h`."""
    save_every_h: float
    """Usual hours between commits; 0 without any."""
    closed_lives_h: tuple[float, ...]
    """Hours from the first step of each attempt to its interruption."""
    open_lives_h: tuple[float, ...]
    """Hours from the first step of each attempt that nothing has interrupted."""
    interruptions: tuple[Interruption, ...]
    """Those after which a step followed."""
    last_s: float
    """Unix time of the last step."""
    down_since_s: float | None
    """Unix time at which the last attempt with a step ended; None while it is alive."""
    complete: bool
    billed_h: float = 0.0
    """Hours on machines: from the node of each attempt to its end."""
    billed_until_s: float = 0.0
    """Unix time of its last line, up to which `billed_h` counts."""
    is_whole: bool = True
    """Its first attempt is among the events, from its start on."""
    capacity: str = ""
    """Capacity of its newest node, if the node watcher has reported it."""
    accelerator: str = ""


def measure(events: Sequence[Event]) -> Pace | None:
    """Measures one run, whose events are in time order. None before it has two windows."""
    leads = select_leads(process_runs(events))
    if not leads:
        return None
    evictions = select_evictions(events)
    close_killed_runs(leads, evictions)
    windows = [read_windows(run) for run in leads]
    all_windows: list[StepWindow] = []
    for run_windows in windows:
        all_windows += run_windows
    if len(all_windows) < FEWEST_WINDOWS:
        return None
    step_h = find_step_h(windows)
    machines_us = _list_machines_us(events, leads)
    *closed_lives_h, open_life_h = _list_lives_h(leads, windows)
    return Pace(
        world_size=int(leads[-1].first_value("start", "world_size", 1)),
        step=_find_step(leads[-1], windows[-1]) or all_windows[-1].last_step,
        total_steps=_find_total_steps(leads),
        step_h=step_h,
        spread=find_spread(all_windows),
        save_every_h=_find_save_interval_h(leads),
        closed_lives_h=tuple(closed_lives_h),
        open_lives_h=(open_life_h,),
        interruptions=tuple(
            _find_interruptions(
                leads,
                windows,
                machines_us,
                step_h,
            )
        ),
        last_s=all_windows[-1].end_us / 1e6,
        down_since_s=_find_down_since_s(
            leads,
            windows,
            evictions,
        ),
        complete=leads[-1].exit_code == 0,
        billed_h=_sum_billed_h(leads, machines_us),
        billed_until_s=leads[-1].ends_us / 1e6,
        is_whole=_begins_run(leads[0]),
        capacity=find_newest(events, "capacity"),
        accelerator=find_newest(events, "accelerator"),
    )


def _begins_run(run: ProcessRun) -> bool:
    """Returns whether it is the first attempt, and its start was not cut off a long log."""
    starts = run.select("start")
    return bool(starts) and not starts[0].fields.get("attempt")


def _list_machines_us(events: Sequence[Event], leads: Sequence[ProcessRun]) -> list[int]:
    """Returns when each attempt got its node: its process starts later, and the node is billed.

    Without a line of the node watcher it is the start of the process.
    """
    scheduled_us = [event.t_us for event in events if event.type == "scheduled"]
    machines_us: list[int] = []
    ended_us = 0
    for run in leads:
        number = bisect_right(scheduled_us, run.begins_us)
        newest_us = scheduled_us[number - 1] if number else 0
        # An older line is about an earlier attempt: the process started again on the same node.
        is_own = newest_us and newest_us >= ended_us
        machines_us.append(newest_us if is_own else run.begins_us)
        ended_us = run.ends_us
    return machines_us


def _sum_billed_h(leads: Sequence[ProcessRun], machines_us: Sequence[int]) -> float:
    total_us = 0
    for run, machine_us in zip(
        leads,
        machines_us,
        strict=True,
    ):
        total_us += max(0, run.ends_us - machine_us)
    return total_us / HOUR_US


def find_newest(events: Sequence[Event], name: str) -> str:
    for event in reversed(events):
        if event.type == "scheduled":
            return str(event.fields.get(name) or "")
    return ""


def find_step_h(windows: Iterable[Sequence[StepWindow]]) -> float:
    """Returns the hours of a step, from the first window of each attempt to its last."""
    steps = 0
    total_us = 0
    for run_windows in windows:
        if run_windows:
            steps += sum(window.steps for window in run_windows)
            total_us += run_windows[-1].end_us - run_windows[0].begin_us
    return total_us / max(1, steps) / HOUR_US


def find_spread(windows: Sequence[StepWindow]) -> float:
    paces = [(window.end_us - window.begin_us) / window.steps for window in windows]
    mean = statistics.fmean(paces)
    if mean <= 0:
        return LEAST_SPREAD
    relative_deviation = statistics.stdev(paces) / mean
    return max(LEAST_SPREAD, relative_deviation / len(paces) ** 0.5)


def _find_step(run: ProcessRun, windows: Sequence[StepWindow]) -> float:
    restored = run.first_value("restore", "step", 0)
    return float(windows[-1].last_step if windows else restored)


def _find_down_since_s(
    leads: Sequence[ProcessRun],
    windows: Sequence[Sequence[StepWindow]],
    evictions: Sequence[Event],
) -> float | None:
    numbers = [number for number, run_windows in enumerate(windows) if run_windows]
    run = leads[numbers[-1]]
    last_us = windows[numbers[-1]][-1].end_us
    is_over = run is not leads[-1] or run.exit_code is not None
    is_evicted = any(event.t_us >= last_us for event in evictions)
    return run.ends_us / 1e6 if is_over or is_evicted else None


def _find_total_steps(leads: Sequence[ProcessRun]) -> float | None:
    """Returns the total that the program reported last; a restart may change it."""
    for run in reversed(leads):
        steps = run.first_value("start", "steps", 0)
        if steps:
            return float(steps)
    return None


def _find_save_interval_h(leads: Sequence[ProcessRun]) -> float:
    gaps_us: list[int] = []
    for run in leads:
        times = [event.t_us for event in run.select("commit")]
        gaps_us += [later - earlier for earlier, later in pairwise(times)]
    return statistics.median(gaps_us) / HOUR_US if gaps_us else 0.0


def _find_interruptions(
    leads: Sequence[ProcessRun],
    windows: Sequence[Sequence[StepWindow]],
    machines_us: Sequence[int],
    step_h: float,
) -> Iterable[Interruption]:
    """Yields what each interruption cost. Attempts without a step count with the one before."""
    before: ProcessRun | None = None
    reached = 0.0
    for run, run_windows, machine_us in zip(
        leads,
        windows,
        machines_us,
        strict=True,
    ):
        if not run_windows:
            continue
        first = run_windows[0]
        if before is not None:
            restored = run.first_value("restore", "step", first.last_step - first.steps)
            yield Interruption(
                wait_h=max(0, machine_us - before.ends_us) / HOUR_US,
                restart_h=max(0, first.begin_us - machine_us) / HOUR_US,
                lost_h=max(0.0, reached - restored) * step_h,
            )
        before = run
        reached = run_windows[-1].last_step
        if step_h:
            # Steps since the last line; a save at the end keeps them.
            rest_h = (run.ends_us - run_windows[-1].end_us) / HOUR_US
            reached += rest_h / step_h


def _list_lives_h(
    leads: Sequence[ProcessRun], windows: Sequence[Sequence[StepWindow]]
) -> Iterable[float]:
    """Yields the hours from the first step of each attempt to its end."""
    for run, run_windows in zip(
        leads,
        windows,
        strict=True,
    ):
        if run_windows:
            yield max(0, run.ends_us - run_windows[0].begin_us) / HOUR_US
