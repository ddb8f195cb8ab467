"""Every drill: those of drills.toml, and those that other distributions add by the entry points
`holdfast.drills`.
"""

import tomllib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from holdfast.drill.plan import Blast, Drill, DrillWork, Fault, Place, bound, promised
from holdfast.support.errors import InputError
from holdfast.support.extensions import extensions, refused
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

GROUP = "holdfast.drills"
"""Of entry points: each is a callable without arguments that returns drills."""
SAVE_EVERY = 20  # steps between checkpoints of the local trainer
NODES = 2  # of the local sharded gang; steps
COPY_EVERY = 10
COMMIT_EVERY = 50
WORKERS = 3
ITEMS = 3_000
SERVERS = 3
REQUESTS_PER_S = 50.0

_NAMES = {
    "preempted": EXIT_PREEMPTED,
    "window_s": DEFAULT_WINDOW.pod_s - WINDOW_MARGIN_S + 1,
    "save_every": SAVE_EVERY,
    "two_copies": 2 * COPY_EVERY,
    "some_items": ITEMS // 20,
}
_TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("drills.toml").read_text()
)


def _stated(name: str) -> dict[str, Any]:
    """Of a drill, and of the one that it is like."""
    own = _TABLES[name]
    return (_stated(own["like"]) if "like" in own else {}) | own


# Field of a drill -> what makes it of its text; other fields are as they are stated.
_READERS: dict[str, Callable[[Any], Any]] = {
    "place": Place,
    "work": DrillWork,
    "fault": Fault,
    "blast": lambda stated: Blast(**stated),
    "steady": lambda text: bound(text.format(**_NAMES)),
    "stop_when": bound,
    "objectives": lambda texts: promised(*(text.format(**_NAMES) for text in texts)),
}


def _built_in(name: str) -> Drill:
    stated = {field: value for field, value in _stated(name).items() if field != "like"}
    return Drill(
        name=name,
        **{f: _READERS[f](value) if f in _READERS else value for f, value in stated.items()},
    )


BUILT_IN = tuple(map(_built_in, _TABLES))


def drills() -> dict[str, Drill]:
    """Built-in ones first. InputError names the distribution that adds what is none."""
    found = {drill.name: drill for drill in BUILT_IN}
    for distribution, name, make in extensions(GROUP):
        for drill in _made(distribution, name, make):
            if drill.name in found:
                raise refused(
                    distribution,
                    f"{GROUP}: {name}",
                    f"a second drill {drill.name}",
                    "names that are free",
                )
            found[drill.name] = drill
    return found


def _made(distribution: str, name: str, make: object) -> list[Drill]:
    what = f"{GROUP}: {name}"
    allowed = "a callable that returns drills"
    try:
        made = list(cast(Callable[[], Iterable[Any]], make)())
    except Exception as error:  # foreign code runs here, and may raise anything
        raise refused(distribution, what, f"{type(error).__name__}: {error}", allowed) from error
    wrong = [each for each in made if not isinstance(each, Drill)]
    if wrong:
        raise refused(distribution, what, repr(wrong[0]), allowed)
    return made


def find(name: str) -> Drill:
    known = drills()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    fix = f"did you mean {near[0]}?" if near else "`holdfast drill --list`"
    raise InputError(
        "no such drill",
        got=name,
        allowed=", ".join(known),
        fix=fix,
    )


def of(place: Place) -> list[Drill]:
    """What `--target PLACE` runs: all but the controls."""
    return [drill for drill in drills().values() if drill.place is place and not drill.control]
