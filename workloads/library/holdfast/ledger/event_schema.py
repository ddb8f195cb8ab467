"""Checks what an event line may hold.

Any pod may print a line, so all code behind this check relies on it (infra/decisions/0075).
Guarantee for a record that is accepted: its names are short and printable, its time is a time, and
each known field has the right type and a value that sums and products of doubles can hold. Fields
that the contract does not know are never read.

Decision: infra/decisions/0177 (why a table of bounds, not a library).
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.vocabulary.telemetry import (
    EVENT_VERSION,
    EVENTS,
    KIND_BATCH,
    KIND_NODE,
    KIND_TRAINING,
)

# A wall clock in seconds lies between 2001 and 2100; milliseconds and uptimes do not.
EARLIEST_S = 1e9
LATEST_S = 4.1e9
AHEAD_S = 300.0
"""A pod's clock may be this far ahead of the reader's."""
MAX_LINE_BYTES = 262_144  # Cloud Logging takes no longer entry
MAX_NAME = 253
MAX_TEXT = 4_096
MAX_LIST = 10_000
MAX_COUNT = 2**53  # doubles hold every integer up to here
MAX_SECONDS = 1e9
KINDS = frozenset({KIND_TRAINING, KIND_BATCH, KIND_NODE})


def _is_count(value: object) -> bool:
    # A bool is an int, but no amount.
    if type(value) is not int and type(value) is not float:
        return False
    return 0 <= value <= MAX_COUNT


def _is_seconds(value: object) -> bool:
    if type(value) is not float and type(value) is not int:
        return False
    return 0 <= value <= MAX_SECONDS


def _is_number(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) <= MAX_COUNT


def _is_share(value: object) -> bool:
    if type(value) is not float and type(value) is not int:
        return False
    return 0 <= value <= 1


def _is_name(value: object) -> bool:
    """Printable text has no control characters and no lone surrogates, which files cannot hold."""
    return type(value) is str and len(value) <= MAX_NAME and value.isprintable()


def _is_text(value: object) -> bool:
    if type(value) is not str or len(value) > MAX_TEXT:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_item(value: object) -> bool:
    return _is_text(value) or _is_count(value)


def _are_items(value: object) -> bool:
    """Accepts a number of items, or the list of their ids."""
    if type(value) is list and len(value) <= MAX_LIST:
        return all(map(_is_item, value))
    return _is_count(value)


def _is_list(value: object) -> bool:
    """Accepts any elements, because only the length is read."""
    return type(value) is list and len(value) <= MAX_LIST


def _is_mapping(value: object) -> bool:
    return type(value) is dict


_COUNTS = (
    "step steps first_step last_step bytes rank slowest_rank world_size nodes of attempt code"
    " failures"
)
_SECONDS = "seconds blocking_seconds"
_NAMES = (
    "signal node pool queue flavor zone machine_type capacity source accelerator error_class fault"
    " answer namespace"
)
_TEXTS = "target reason"
Check = Callable[[object], bool]
FIELDS: dict[str, Check] = (
    dict.fromkeys(_COUNTS.split(), _is_count)
    | dict.fromkeys(_SECONDS.split(), _is_seconds)
    | dict.fromkeys(_NAMES.split(), _is_name)
    | dict.fromkeys(_TEXTS.split(), _is_text)
    | {
        "item": _is_item,
        "items": _are_items,
        "skipped": _is_list,
        "phases": _is_mapping,
        "loss": _is_number,
        "slowest_by": _is_number,
        "obtainability": _is_share,
    }
)
_AMOUNTS = (_is_count, _is_seconds, _is_number, _is_share)


def _list_checks(fields: Iterable[str]) -> tuple[tuple[str, Check], ...]:
    return tuple((name, FIELDS[name]) for name in fields)


_CHECKS = {event_type: _list_checks(fields) for event_type, fields in EVENTS.items()}


def refusal(record: Any, *, job: str = "", now_s: float | None = None) -> str:
    """Returns why a record is unusable; empty if it is fine.

    The parameters are those of events.parse.
    """
    if type(record) is not dict:
        return "lines that are no object"
    if record.get("v") != EVENT_VERSION:
        return f"lines of a version other than {EVENT_VERSION}"
    return _check_head(record, job, now_s) or _check_body(record)


def _check_head(record: dict[str, Any], job: str, now_s: float | None) -> str:
    if not all(_is_name(record.get(name)) for name in ("event", "job", "kind", "process")):
        return "lines without event, job, kind or process"
    t: Any = record.get("t")
    if not (_is_number(t) and EARLIEST_S < t < LATEST_S):
        return "lines whose time is no Unix time in seconds"
    if now_s is not None and t > now_s + AHEAD_S:
        return "lines from the future"
    if record["kind"] not in KINDS or record["event"] not in EVENTS:
        return "lines of an event type that this version does not know"
    if job and record["job"] != job:
        return "lines about a job other than the one whose pod wrote them"
    index = record.get("index")
    if index is None or _is_count(index):
        return ""
    return "lines with a field that is no amount"


def _check_body(record: dict[str, Any]) -> str:
    for name, check in _CHECKS[record["event"]]:
        value = record.get(name)
        if value is not None and not check(value):
            noun = "amount" if check in _AMOUNTS else f"usable {name}"
            return f"lines with a field that is no {noun}"
    return ""


def read_index(record: dict[str, Any]) -> int | None:
    """Returns the index of a record that was not refused."""
    index = record.get("index")
    return None if index is None else int(index)
