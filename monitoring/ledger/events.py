"""Reads event lines (holdfast.contract.telemetry.EVENTS).

Guarantee: a line that cannot be used is counted under its reason, never guessed at; the events that
remain are in time order, and the clock of each process runs forward.
"""

import gc
import json
import math
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.contract.errors import InputError
from holdfast.contract.telemetry import EVENT_VERSION, EVENTS

# Fields that arithmetic is done with: a finite number that is not negative, or the line is refused.
NUMBERS = frozenset(
    {"step", "seconds", "first_step", "last_step", "blocking_seconds", "bytes", "rank", "world_size", "attempt", "code"}
)
# A wall clock in seconds: later than 2001, earlier than 2286. Milliseconds and uptimes fall outside.
EARLIEST_S, LATEST_S = 1e9, 1e10
_NUMBERS_OF = {event_type: NUMBERS.intersection(fields) for event_type, fields in EVENTS.items()}


class Event(NamedTuple):
    """`t_us` is integer so that sums of intervals are exact."""

    t_us: int
    type: str
    job: str
    kind: str
    process: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Reading:
    """What a source held: the usable events in time order, and how many lines were not, by reason."""

    events: list[Event] = field(default_factory=list[Event])
    problems: Counter[str] = field(default_factory=Counter[str])

    def merge(self, other: "Reading") -> None:
        self.events += other.events
        self.problems += other.problems


def read_folder(folder: Path) -> Reading:
    """Every *.jsonl under a folder. Each file is one writer's: duplicates and clocks are judged within it."""
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise InputError(
            "no event files",
            got=f"{folder} ({'no such folder' if not folder.is_dir() else 'holds no *.jsonl'})",
            allowed="a folder with *.jsonl files of event lines",
            fix="give the folder that HOLDFAST_EVENTS points into; make demo writes out/demo/events",
        )
    reading = Reading()
    for path in files:
        reading.merge(parse(_bytes(path).splitlines()))
    reading.events.sort(key=lambda event: event.t_us)
    return reading


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise InputError("an event file cannot be read", got=got, allowed="files that may be read", fix="mend its rights, or move it away") from error  # fmt: skip


@contextmanager
def uncollected() -> Generator[None]:
    """A million events are no garbage: looking for cycles among them would cost a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@uncollected()
def parse(lines: Sequence[bytes]) -> Reading:
    """Lines in the order in which they were written."""
    reading = Reading()
    unique = list(dict.fromkeys(line for line in lines if line.strip()))
    _count(reading, "duplicated lines", sum(1 for line in lines if line.strip()) - len(unique))
    newest: dict[str, int] = {}
    for record in _records(unique, reading):
        if _is_log_line(record):
            continue
        reason = _refusal(record)
        if reason:
            reading.problems[reason] += 1
            continue
        process = str(record["process"])
        t_us, before = round(record["t"] * 1e6), newest.get(process, 0)
        if t_us < before:
            # The true time is unknown; holding the clock still makes the stretch idle instead of counting it twice.
            reading.problems["lines whose clock ran backwards"] += 1
            t_us = before
        newest[process] = t_us
        event = Event(t_us, record["event"], str(record["job"]), str(record["kind"]), process, record)
        reading.events.append(event)
    reading.events.sort(key=lambda event: event.t_us)
    return reading


def _records(lines: Sequence[bytes], reading: Reading) -> Iterable[dict[str, Any]]:
    """JSON objects of the lines. One parse of a whole block is six times as fast as one for each line."""
    for first in range(0, len(lines), 10_000):
        block = lines[first : first + 10_000]
        try:
            parsed = json.loads(b"[" + b",".join(block) + b"]")
            whole = len(parsed) == len(block)
        except ValueError:
            parsed, whole = [], False
        yield from (parsed if whole else _one_by_one(block, reading))


def _one_by_one(lines: Sequence[bytes], reading: Reading) -> Iterable[Any]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            reading.problems["lines cut short or not JSON"] += 1


def _is_log_line(record: Any) -> bool:
    """Where events go to standard output, the log of the same process does too (holdfast.runtime.logs)."""
    return isinstance(record, dict) and "severity" in record and "event" not in record


def _refusal(record: Any) -> str:
    """Why a record is unusable; empty if it is fine."""
    if not isinstance(record, dict):
        return "lines that are no object"
    if record.get("v") != EVENT_VERSION:
        return f"lines of a version other than {EVENT_VERSION}"
    event_type, t = record.get("event"), record.get("t")
    if not (isinstance(event_type, str) and "job" in record and "kind" in record and "process" in record):
        return "lines without event, job, kind or process"
    if not (isinstance(t, (int, float)) and EARLIEST_S < t < LATEST_S):
        return "lines whose time is no Unix time in seconds"
    if event_type not in EVENTS:
        return "lines of an event type that this version does not know"
    for name in _NUMBERS_OF[event_type]:
        if name in record and not _is_amount(record[name]):
            return "lines with a field that is no amount"
    return ""


def _is_amount(value: object) -> bool:
    if type(value) is int or type(value) is float:  # bool is an int, and no amount
        return 0 <= value < math.inf
    return value is None


def _count(reading: Reading, reason: str, number: int) -> None:
    if number:
        reading.problems[reason] += number
