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

from holdfast.ledger.event_schema import MAX_LINE_BYTES, read_index, refusal
from holdfast.support.errors import InputError

# Lines with these problems are used nevertheless.
DUPLICATED = "duplicated lines"
BACKWARDS = "lines whose clock ran backwards"
KEPT_PROBLEMS = frozenset({DUPLICATED, BACKWARDS})
BLOCK_LINES = 10_000


class Event(NamedTuple):
    """A usable line. `t_us` is an integer so that sums of intervals are exact."""

    t_us: int
    type: str
    job: str
    kind: str
    process: str
    fields: dict[str, Any]
    run_index: int | None = None
    """Index of the run, if each index of the job trains apart."""


@dataclass(slots=True)
class Reading:
    """The usable events of a source in time order, and the count of unusable lines by reason."""

    events: list[Event] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)


def read_folder(folder: Path) -> Reading:
    """Reads every *.jsonl under a folder. Raises InputError if there is none.

    Each file has one writer, so duplicates and clocks are judged within a file.
    """
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        problem = "contains no *.jsonl" if folder.is_dir() else "no such folder"
        raise InputError(
            "no event files",
            got=f"{folder} ({problem})",
            allowed="a folder with *.jsonl files of event lines",
            fix="use the folder in HOLDFAST_EVENTS; `holdfast demo` writes out/demo/events",
        )
    reading = Reading()
    for path in files:
        file_reading = parse(_read_bytes(path).splitlines())
        reading.events += file_reading.events
        reading.problems += file_reading.problems
    reading.events.sort(key=lambda event: event.t_us)
    return reading


class Tail:
    """Follows a file that another process writes. Half a line waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[bytes]:
        """Returns the whole lines added since the last call; none if the file does not exist."""
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


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            "an event file cannot be read",
            got=f"{path}: {error.strerror}",
            allowed="readable files",
            fix="fix its permissions, or move it away",
        ) from error


@contextmanager
def pause_gc() -> Generator[None]:
    """Pauses the garbage collector.

    Looking for cycles among a million live events would cost a third of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@pause_gc()
def parse(lines: Sequence[bytes], *, job: str = "", now_s: float | None = None) -> Reading:
    """Parses lines, which are in the order of writing.

    `job` is the job whose pod wrote them, if known; a line about another job is refused. `now_s` is
    the reader's clock, if the lines are current; a line from its future is refused.
    """
    reading = Reading()
    nonempty = [line for line in lines if line.strip()]
    unique = list(dict.fromkeys(nonempty))
    if len(unique) < len(nonempty):
        reading.problems[DUPLICATED] = len(nonempty) - len(unique)
    newest: dict[str, int] = {}
    for record in _decode(unique, reading):
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
            # The true time is unknown. A clock that does not advance makes the stretch idle instead
            # of counting it twice.
            reading.problems[BACKWARDS] += 1
            t_us = before
        newest[process] = t_us
        event = Event(
            t_us,
            record["event"],
            record["job"],
            record["kind"],
            process,
            record,
            read_index(record),
        )
        reading.events.append(event)
    reading.events.sort(key=lambda event: event.t_us)
    return reading


def _decode(lines: Sequence[bytes], reading: Reading) -> Iterable[Any]:
    """Yields the JSON values of the lines.

    Parsing a whole block at once is six times as fast as parsing each line.
    """
    for first in range(0, len(lines), BLOCK_LINES):
        block = lines[first : first + BLOCK_LINES]
        values = _decode_block(block)
        if values is None:
            yield from _decode_one_by_one(block, reading)
        else:
            yield from values


def _decode_block(lines: Sequence[bytes]) -> list[Any] | None:
    """Returns a value for each line; None if some line is not exactly one value."""
    if max(map(len, lines)) > MAX_LINE_BYTES:
        return None
    try:
        values = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    return values if len(values) == len(lines) else None


def _decode_one_by_one(lines: Sequence[bytes], reading: Reading) -> Iterable[Any]:
    for line in lines:
        if len(line) > MAX_LINE_BYTES:
            reading.problems[f"lines of more than {MAX_LINE_BYTES:,} bytes"] += 1
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):  # nesting as deep as a line is long
            reading.problems["lines cut short or not JSON"] += 1


def _is_log_line(record: Any) -> bool:
    """Returns whether a record is of the log (holdfast.runtime.logs).

    A process that writes events to standard output writes its log there, too.
    """
    if not isinstance(record, dict):
        return False
    return "severity" in record and "event" not in record
