"""Loads every drill: those of drills.toml, and those of the entry point group `holdfast.drills`."""

import tomllib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from holdfast.drill.plan import (
    Blast,
    Drill,
    DrillWork,
    Fault,
    Objective,
    Place,
    parse_bound,
    parse_objective,
)
from holdfast.support.errors import InputError
from holdfast.support.extensions import load_extensions, make_extension_error
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

GROUP = "holdfast.drills"
"""The entry point group; each entry is a callable without arguments that returns drills."""
SAVE_EVERY = 20  # steps between checkpoints of the local trainer
NODES = 2  # in the local sharded gang
COPY_EVERY = 10  # steps
COMMIT_EVERY = 50  # steps
WORKERS = 3
ITEMS = 3_000
SERVERS = 3
REQUESTS_PER_S = 50.0
ENGINES = 3
STREAMS = 12

_NAMES = {
    "preempted": EXIT_PREEMPTED,
    "window_s": DEFAULT_WINDOW.pod_s - WINDOW_MARGIN_S + 1,
    "save_every": SAVE_EVERY,
    "two_copies": 2 * COPY_EVERY,
    "some_items": ITEMS // 20,
    "streams": STREAMS,
}
_TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("drills.toml").read_text()
)


def _read_table(name: str) -> dict[str, Any]:
    """Returns the table of a drill, completed by the drill that it is `like`."""
    table = dict(_TABLES[name])
    base = table.pop("like", None)
    return _read_table(base) | table if base else table


def _parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    return tuple(parse_objective(text.format(**_NAMES)) for text in texts)


# Parsers by field; other fields keep the value of the table.
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "place": Place,
    "work": DrillWork,
    "fault": Fault,
    "blast": lambda table: Blast(**table),
    "steady": lambda text: parse_bound(text.format(**_NAMES)),
    "stop_when": parse_bound,
    "objectives": _parse_objectives,
}


def _load_built_in(name: str) -> Drill:
    fields = _read_table(name)
    for field, parse in _PARSERS.items():
        if field in fields:
            fields[field] = parse(fields[field])
    return Drill(name=name, **fields)


BUILT_IN = tuple(_load_built_in(name) for name in _TABLES)


def drills() -> dict[str, Drill]:
    """Returns all drills by name, the built-in ones first.

    Raises InputError, with the name of the distribution, if an entry point is not usable.
    """
    drills_by_name = {drill.name: drill for drill in BUILT_IN}
    for distribution, name, make in load_extensions(GROUP):
        for drill in _load_extension(distribution, name, make):
            if drill.name in drills_by_name:
                raise make_extension_error(
                    distribution,
                    f"{GROUP}: {name}",
                    f"a second drill {drill.name}",
                    "names that are free",
                )
            drills_by_name[drill.name] = drill
    return drills_by_name


def _load_extension(distribution: str, name: str, make: object) -> list[Drill]:
    entry = f"{GROUP}: {name}"
    allowed = "a callable that returns drills"
    try:
        list_drills = cast(Callable[[], Iterable[Any]], make)
        extension_drills = list(list_drills())
    except Exception as error:  # code of another distribution may raise anything
        raise make_extension_error(
            distribution, entry, f"{type(error).__name__}: {error}", allowed
        ) from error
    for drill in extension_drills:
        if not isinstance(drill, Drill):
            raise make_extension_error(distribution, entry, repr(drill), allowed)
    return extension_drills


def find(name: str) -> Drill:
    """Returns a drill by name. Raises InputError, with the closest name, if there is none."""
    drills_by_name = drills()
    if name in drills_by_name:
        return drills_by_name[name]
    matches = get_close_matches(name, drills_by_name, n=1)
    raise InputError(
        "no such drill",
        got=name,
        allowed=", ".join(drills_by_name),
        fix=f"did you mean {matches[0]}?" if matches else "`holdfast drill --list`",
    )


def list_by_place(place: Place) -> list[Drill]:
    """Returns the drills that `--target PLACE` runs: all of the place except the controls."""
    of_place = [drill for drill in drills().values() if drill.place is place]
    return [drill for drill in of_place if not drill.control]
