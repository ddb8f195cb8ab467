"""A small generator of event lines, so that tests need no trainer: simulated time, seeded, exact.

Every function returns event dicts as the trainer, the batch worker and the drill would write them.
"""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
EPOCH = 1_790_000_000.0


def line(
    t: float,
    event: str,
    job: str = "job",
    kind: str = "training",
    process: str = "p0",
    **fields: Any,
) -> Line:
    return {
        "v": 1,
        "t": t,
        "event": event,
        "job": job,
        "kind": kind,
        "process": process,
        **fields,
    }


def make_kills(count: int) -> tuple[tuple[float, str], ...]:
    """Returns kills of attempts that live for 10 to 16 seconds, by both signals in turn."""
    return tuple((10.0 + n % 7, "SIGKILL" if n % 2 else "SIGTERM") for n in range(count))


def write(path: Path, lines: Iterable[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))


def training(
    job: str,
    *,
    seed: int = 1,
    total: int = 300,
    every: int = 20,
    kills: Sequence[tuple[float, str]] = (),
    step_s: float = 0.2,
    restart_s: float = 4.0,
    saves: bool = True,
) -> list[Line]:
    """A trainer that is killed `kills` = (seconds after its attempt began, signal) and comes back
    each time.
    """
    rng = random.Random(seed)
    lines = list[Line]()
    t = EPOCH
    step = 0
    committed = 0

    def emit(event: str, *, at: float | None = None, by: str = "", **fields: Any) -> None:
        lines.append(
            line(round(t if at is None else at, 6), event, job, process=by or process, **fields)
        )

    for attempt, (life_s, signal) in enumerate([*kills, (float("inf"), "")]):
        process = f"host-{1000 + attempt}-ab{attempt}"
        begin = t
        emit("start", rank=0, world_size=2, attempt=attempt)
        t += 2.0
        emit("restore", step=committed, seconds=0.3, skipped=[])
        step = committed
        window_first = committed + 1
        window_began = t
        ending = ""
        while step < total and not ending:
            t += step_s * rng.uniform(0.9, 1.15)
            step += 1
            ending = signal if t - begin >= life_s else ""
            if ending == "SIGKILL":
                break
            if step % 5 == 0 or step == total or ending:
                fields = {
                    "first_step": window_first,
                    "last_step": step,
                    "seconds": round(t - window_began, 6),
                }
                emit("window", **fields, loss=round(5 / (1 + step / 60), 4))
                window_first = step + 1
                window_began = t
            if (step % every == 0 or step == total or ending) and saves:
                t += 0.05
                emit(
                    "save",
                    step=step,
                    blocking_seconds=0.05,
                    bytes=2_400_000,
                )
                emit("commit", step=step, seconds=0.4, bytes=2_400_000)
                committed = step
                window_began = t
        if not ending:
            t += 0.3
            emit("exit", code=0, step=step, digest="8f2c")
            break
        emit(
            "evict",
            at=t if ending == "SIGKILL" else t - 0.6,
            by="driver",
            signal=ending,
            target="pod-77",
        )
        if ending == "SIGTERM":
            emit("stop", step=step, reason="SIGTERM")
            t += 0.4
            emit("exit", code=143, step=step)
        t += restart_s / 2
    return lines


def kill_and_restore(job: str) -> list[Line]:
    """Returns the lines of a job that is killed at step 100, ten seconds after its last line, is
    restored at 45 after 12 s of start, and is now at step 60.
    """
    first = []
    for n in range(1, 11):
        first.append(
            line(
                EPOCH + 10 * n,
                "window",
                job,
                first_step=10 * n - 9,
                last_step=10 * n,
                seconds=10,
            )
        )
    return [
        line(EPOCH, "start", job, rank=0, attempt=0),
        line(EPOCH, "restore", job, step=0, seconds=0),
        *first,
        line(EPOCH + 46, "commit", job, step=45, seconds=1, bytes=1),
        line(
            EPOCH + 110,
            "evict",
            job,
            process="driver",
            signal="SIGKILL",
            target="p0",
        ),
        line(
            EPOCH + 190,
            "start",
            job,
            process="p1",
            rank=0,
            attempt=1,
        ),
        line(
            EPOCH + 202,
            "restore",
            job,
            process="p1",
            step=45,
            seconds=2,
        ),
        line(
            EPOCH + 217.4,
            "window",
            job,
            process="p1",
            first_step=46,
            last_step=60,
            seconds=15,
        ),
    ]


def elastic(job: str) -> list[Line]:
    """Two of eight places without a node for 30 of 60 minutes."""
    sizes = []
    for minute, nodes in ((0, 8), (20, 6), (50, 8)):
        sizes.append(
            line(
                EPOCH + 60 * minute,
                "resized",
                job,
                step=minute,
                nodes=nodes,
                of=8,
                seconds=0.0,
            )
        )
    windows = []
    for minute, long in ((20, 20), (50, 30), (60, 10)):
        windows.append(
            line(
                EPOCH + 60 * minute,
                "window",
                job,
                first_step=minute - long + 1,
                last_step=minute,
                seconds=60.0 * long,
            )
        )
    both = sorted([*windows, *sizes], key=lambda row: row["t"])
    return [
        line(EPOCH, "start", job, rank=0, attempt=0),
        *both,
        line(EPOCH + 3_600, "exit", job, code=0, step=60),
    ]


def batch(
    job: str,
    *,
    workers: int = 4,
    items: int = 240,
    kills: int = 0,
    seed: int = 3,
) -> list[Line]:
    """Workers that take chunks of 6; a killed one is replaced two seconds later and its chunk comes
    back.
    """
    rng = random.Random(seed)
    lines = list[Line]()
    remaining = items
    last = EPOCH
    doomed = set(range(2, 2 * kills + 1, 2))

    def emit(t: float, event: str, worker: int, **fields: Any) -> None:
        lines.append(line(t, event, job, "batch", f"host-{worker}-w", **fields))

    ready = [(EPOCH + rng.random(), n) for n in range(workers)]
    for t, n in ready:
        emit(t, "start", n, rank=n, world_size=1, attempt=0)
    ready = [(t + 1.5, n) for t, n in ready]
    number = workers
    for turn in itertools.count(1):
        if remaining <= 0:
            break
        ready.sort()
        (t, n), chunk = ready.pop(0), min(6, remaining)
        emit(t, "claimed", n, items=chunk)
        spent = rng.uniform(0.8, 1.4)
        if turn in doomed:
            signal = "SIGKILL" if turn % 4 else "SIGTERM"
            died = t + spent / 2
            lines.append(
                line(
                    died,
                    "evict",
                    job,
                    "batch",
                    "driver",
                    signal=signal,
                    target=f"pod-{n}",
                )
            )
            if signal == "SIGTERM":
                emit(died + 0.1, "released", n, items=chunk)
                emit(died + 0.2, "exit", n, code=143)
            emit(
                died + 2,
                "start",
                number,
                rank=n,
                world_size=1,
                attempt=1,
            )
            ready.append((died + 3.5, number))
            number += 1
        else:
            remaining -= chunk
            emit(t + spent, "stored", n, items=chunk, seconds=0.02)
            last = max(last, t + spent + 0.01)
            emit(t + spent + 0.01, "acked", n, items=chunk)
            ready.append((t + spent + 0.02, n))
    for _, n in ready:
        emit(last + 0.2, "exit", n, code=0)
    return sorted(lines, key=lambda row: row["t"])


KILLS = (
    (13.0, "SIGTERM"),
    (9.0, "SIGKILL"),
    (15.0, "SIGTERM"),
    (12.0, "SIGKILL"),
    (8.0, "SIGTERM"),
    (14.0, "SIGKILL"),
)


def demo(folder: Path) -> Path:
    """What `make demo` leaves: events of five jobs and the summary. Returns the summary's path."""
    jobs = {
        "train-baseline": training("train-baseline"),
        "train-evicted": training("train-evicted", kills=KILLS),
        "train-naive": naive("train-naive"),
        "batch-baseline": batch("batch-baseline", items=480),
        "batch-evicted": batch("batch-evicted", items=480, kills=8),
    }
    for job, lines in jobs.items():
        write(folder / "events" / f"{job}.jsonl", lines)
    summary = folder / "summary.json"
    summary.write_text(json.dumps(SUMMARY, indent=2))
    return summary


def naive(job: str) -> list[Line]:
    """Returns the lines of a job that saves rarely, starts again from nothing after SIGKILL, and
    leaves with 0 on SIGTERM.
    """
    lines = training(job, kills=KILLS, every=70)
    return [row | {"code": 0} if row["event"] == "exit" else row for row in lines]


def write_watched_job(folder: Path) -> Path:
    """Writes three days of a node watcher and a job, so that a report has prices, churn and waits.
    Returns the folder.
    """
    spot = {
        "zone": "us-central1-a",
        "machine_type": "g2-standard-8",
        "capacity": "spot",
    }
    lines: list[Line] = []
    for n, hours in enumerate((1, 2, 2, 3, 9, 10, 26, 27, 49, 49, 49, 70)):
        named = spot | {"node": f"node-{n}", "pool": ("spot-l4", "spot-l4-b")[n % 2]}
        t = EPOCH - 72 * 3600 + hours * 3600
        lines.append(line(t, "node_up", "", "node", "watcher", seconds=0, **named))
        waited = {"seconds": n / 4, "accelerator": "nvidia-l4"}
        lines.append(
            line(EPOCH + n, "scheduled", "train", "training", f"pod-{n}", **(named | waited))
        )
        lines.append(
            line(
                t + 1800,
                "node_down",
                "",
                "node",
                "watcher",
                reason="preempted",
                seconds=1800,
                **named,
            )
        )
    write(folder / "watcher.jsonl", sorted(lines, key=lambda row: row["t"]))
    write(folder / "train.jsonl", training("train", kills=KILLS))
    return folder


SUMMARY: dict[str, Any] = {
    "schema": "holdfast.demo/1",
    "training": {
        "evictions": 6,
        "save_every": 20,
        "bit_exact": True,
        "steps": 300,
        "lost_steps": 20,
        "digest": "8f2c",
        "false_completions": 0,
        "naive": {
            "lost_steps": 118,
            "bit_exact": False,
            "false_completions": 3,
            "false_completion_steps": [26],
        },
    },
    "batch": {
        "documents": 480,
        "kills": 8,
        "lost": 0,
        "duplicated": 0,
        "recomputed": 24,
        "same_scores": True,
    },
    "serving": {
        "servers": 4,
        "evictions": 4,
        "requests": 1_204,
        "failed": 0,
        "shed": 3,
        "retries": 0,
        "counts_differ": 0,
        "p99_ms": 41,
    },
}


def encoded(lines: Iterable[Line]) -> list[bytes]:
    return [json.dumps(row).encode() for row in lines]
