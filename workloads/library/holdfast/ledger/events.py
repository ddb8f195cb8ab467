"""Reads event lines (holdfast.vocabulary.telemetry.EVENTS).

Guarantee: a line that cannot be used is counted under its reason, never guessed at; the events that
remain are in time order, and the clock of each process runs forward.
"""

import gc
import json
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.ledger.event_schema import MAX_LINE_BYTES, index_of, refusal
from holdfast.support.errors import InputError

# Lines of these are used all the same.
DUPLICATED = "duplicated lines"
BACKWARDS = "lines whose clock ran backwards"
KEPT_PROBLEMS = frozenset({DUPLICATED, BACKWARDS})


class Event(NamedTuple):
    """`t_us` is integer so that sums of intervals are exact."""

    t_us: int
    type: str
    job: str
    kind: str
    process: str
    fields: dict[str, Any]
    run_index: int | None = None
    """Of the run, where each index of the job trains apart."""


@dataclass(slots=True)
class Reading:
    """What a source held: the usable events in time order, and how many lines were not, by reason."""

    events: list[Event] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)


def read_folder(folder: Path) -> Reading:
    """Every *.jsonl under a folder. Each file is one writer's: duplicates and clocks are judged
    within it.
    """
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise InputError(
            "no event files",
            got=f"{folder} ({'no such folder' if not folder.is_dir() else 'contains no *.jsonl'})",
            allowed="a folder with *.jsonl files of event lines",
            fix="use the folder in HOLDFAST_EVENTS; make demo writes out/demo/events",
        )
    reading = Reading()
    for path in files:
        found = parse(_bytes(path).splitlines())
        reading.events += found.events
        reading.problems += found.problems
    reading.events.sort(key=lambda event: event.t_us)
    return reading


class Tail:
    """A file that others write: the whole lines that were added since the last call. Half a line
    waits for its rest.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[bytes]:
        """None from a file that is not there yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as handle:
            if self._offset > self._path.stat().st_size:
                self._offset = 0  # replaced by a shorter file
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise InputError(
            "an event file cannot be read",
            got=got,
            allowed="readable files",
            fix="fix its permissions, or move it away",
        ) from error


@contextmanager
def uncollected() -> Generator[None]:
    """A million events are no garbage: looking for cycles among them would cost a third of the
    time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@uncollected()
def parse(lines: Sequence[bytes], *, job: str = "", now_s: float | None = None) -> Reading:
    """Lines in the order in which they were written.

    `job`: whose pod wrote them, where that is known; a line about another job is refused. `now_s`:
    the reader's clock, where the lines are of today; a line from its future is refused, or it would
    never be the past.
    """
    reading = Reading()
    written = [line for line in lines if line.strip()]
    unique = list(dict.fromkeys(written))
    if len(unique) < len(written):
        reading.problems[DUPLICATED] = len(written) - len(unique)
    newest: dict[str, int] = {}
    for record in _records(unique, reading):
        if _is_log_line(record):
            continue
        reason = refusal(record, job=job, now_s=now_s)
        if reason:
            reading.problems[reason] += 1
            continue
        process = record["process"]
        t_us = round(record["t"] * 1e6)
        before = newest.get(process, 0)
        if t_us < before:
            # The true time is unknown; holding the clock still makes the stretch idle instead of
            # counting it twice.
            reading.problems[BACKWARDS] += 1
            t_us = before
        newest[process] = t_us
        event = Event(
            t_us, record["event"], record["job"], record["kind"], process, record, index_of(record)
        )
        reading.events.append(event)
    reading.events.sort(key=lambda event: event.t_us)
    return reading


def _records(lines: Sequence[bytes], reading: Reading) -> Iterable[Any]:
    """What the lines hold. One parse of a whole block is six times as fast as one for each line."""
    for first in range(0, len(lines), 10_000):
        block = lines[first : first + 10_000]
        try:
            if max(map(len, block)) > MAX_LINE_BYTES:
                raise ValueError("a line of this block is too long")
            parsed = json.loads(b"[" + b",".join(block) + b"]")
            whole = len(parsed) == len(block)
        except (ValueError, RecursionError):
            parsed = []
            whole = False
        yield from (parsed if whole else _one_by_one(block, reading))


def _one_by_one(lines: Sequence[bytes], reading: Reading) -> Iterable[Any]:
    for line in lines:
        if len(line) > MAX_LINE_BYTES:
            reading.problems[f"lines of more than {MAX_LINE_BYTES:,} bytes"] += 1
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):  # nesting as deep as a line is long
            reading.problems["lines cut short or not JSON"] += 1


def _is_log_line(record: Any) -> bool:
    """Where events go to standard output, the log of the same process does too
    (holdfast.runtime.logs).
    """
    return isinstance(record, dict) and "severity" in record and "event" not in record
