"""What a job's own event lines tell of it: step, last save, useful share. Called by list and explain."""

import json
from dataclasses import dataclass
from pathlib import Path

from holdfast.contract.exit_codes import EXIT_PREEMPTED
from workloads.jobs.api import Object


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """From event lines; None where the job has written none."""

    step: int | None = None
    saved_age_s: float | None = None
    useful_ratio: float | None = None
    notices: int = 0
    """Times that it left in order after a notice."""


def read_progress(folder: Path, now: float) -> dict[str, Progress]:
    """By job, from every *.jsonl of the folder; a line that is no event is passed over."""
    lines: dict[str, list[Object]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(errors="replace").splitlines():
            event = _event(text)
            if event is not None:
                lines.setdefault(str(event["job"]), []).append(event)
    return {job: _progress(events, now) for job, events in lines.items()}


def _event(text: str) -> Object | None:
    try:
        event = json.loads(text)
        return event if isinstance(event, dict) and {"t", "event", "job"} <= event.keys() else None
    except ValueError:
        return None


def _progress(events: list[Object], now: float) -> Progress:
    """Rank 0 speaks for a gang; a batch job has neither steps nor saves."""
    windows = [e for e in events if e["event"] == "window" and e.get("rank", 0) == 0]
    commits = [float(e["t"]) for e in events if e["event"] == "commit"]
    last = max((float(e["t"]) for e in events), default=now)
    first = min((float(e["t"]) for e in events), default=now)
    best: dict[int, float] = {}
    for window in windows:  # steps done twice count once
        best[int(window["last_step"])] = float(window["seconds"])
    return Progress(
        step=max(best, default=None),
        saved_age_s=now - max(commits) if commits else None,
        notices=sum(e["event"] == "exit" and e.get("rank", 0) == 0 and e["code"] == EXIT_PREEMPTED for e in events),
        useful_ratio=min(1.0, sum(best.values()) / (last - first)) if best and last > first else None,
    )


def progress_text(progress: Progress) -> str:
    """`useful 62 % of its time, step 1200, saved 40 s ago`; empty where it has written nothing."""
    facts = [
        f"useful {100 * progress.useful_ratio:.0f} % of its time" if progress.useful_ratio is not None else "",
        f"step {progress.step}" if progress.step is not None else "",
        f"saved {progress.saved_age_s:.0f} s ago" if progress.saved_age_s is not None else "",
    ]
    return ", ".join(fact for fact in facts if fact)
