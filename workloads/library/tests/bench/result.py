"""The frame of a bench: options; sections; each figure in a row, one JSON line with the goals, exit
code 1 for a missed one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import median
from typing import Any, NoReturn

Found = Mapping[str, Any]
Goals = Mapping[str, Mapping[str, Callable[[Any], bool]]]
"""Of each section what it promises, and whether what was found keeps it."""


def options(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Of the command line, by their defaults; of a tuple, one or more of what it holds."""
    parser = argparse.ArgumentParser(description=about)
    for name, default in defaults.items():
        several = isinstance(default, tuple)
        kind: dict[str, Any] = (
            {"nargs": "+", "choices": default} if several else {"type": type(default)}
        )
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=default,
            help=f"default: {default}",
            **kind,
        )
    return parser.parse_args()


def ended(found: Found, goals: Mapping[str, bool | str]) -> NoReturn:
    """`goals`: true, false or "not run"."""
    print(*rows({**found, "goals": goals}), sep="\n")
    print(json.dumps({**found, "goals": goals}))
    sys.exit(0 if all(goals.values()) else 1)


def rows(found: Found, margin: str = "") -> Iterator[str]:
    """Several of one kind, as the ways of saving, are one table."""
    for name, value in found.items():
        if not isinstance(value, Mapping):
            yield f"{margin + name:<70} {_text(value)}"
        elif len(value) > 1 and all(
            isinstance(each, Mapping) and not _nested(each) for each in value.values()
        ):
            yield from (margin + line for line in _table(name, value))
        else:
            yield f"{margin}{name}"
            yield from rows(value, f"{margin}  ")


def _nested(found: Found) -> bool:
    return any(isinstance(each, Mapping) for each in found.values())


def _table(name: str, found: Mapping[str, Found]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for each in found.values() for column in each))
    cells = [
        [kind, *(_text(each[c]) if c in each else "" for c in columns)]
        for kind, each in found.items()
    ]
    widths = [max(map(len, column)) for column in zip([name, *columns], *cells, strict=True)]
    for line in ([name, *columns], *cells):
        yield "  ".join(
            f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)
        ).rstrip()


def _text(value: object) -> str:
    """Of several numbers the median, the least and the most."""
    if (
        isinstance(value, list | tuple)
        and len(value) > 2
        and all(isinstance(each, int | float) for each in value)
    ):
        return f"{median(value):.4g} ({min(value):.4g} to {max(value):.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def played(sections: Mapping[str, Callable[[], Found]], chosen: Collection[str]) -> dict[str, Any]:
    """The figures of the chosen ones, and how long each took, which is shown as it ends."""
    figures: dict[str, Any] = {}
    for section in chosen:
        began = time.monotonic()
        found = {
            **sections[section](),
            f"{section}_section_s": round(time.monotonic() - began, 1),
        }
        print(*rows(found), sep="\n", file=sys.stderr, flush=True)
        figures |= found
    return figures


def judged(goals: Goals, found: Found) -> dict[str, bool | str]:
    """ "not run" for a section that was left out, or that gives a reason why it could not run."""

    def ran(section: str) -> bool:
        return f"{section}_section_s" in found and f"{section}_not_run" not in found

    return {
        goal: kept(found) if ran(section) else "not run"
        for section, of in goals.items()
        for goal, kept in of.items()
    }
