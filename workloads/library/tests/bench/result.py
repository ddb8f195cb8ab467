"""The frame of a bench: options, sections, and its result.

A result is printed as rows and as one JSON line with the goals. The exit code is 1 if a goal is
missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NoReturn, TypeGuard

Figures = Mapping[str, Any]
Goals = Mapping[str, Mapping[str, Callable[[Any], bool]]]
"""Maps a section to its goals: a name, and a test over all figures."""
SECTION_TIME = "_section_s"
"""The end of the name of the figure that has the time of a section."""


def options(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Parses the command line: one option for each default, of the default's type.

    A default that is a tuple lists the choices, of which the user gives one or more.
    """
    parser = argparse.ArgumentParser(description=about)
    for name, default in defaults.items():
        kind: dict[str, Any] = {"type": type(default)}
        if isinstance(default, tuple):
            kind = {"nargs": "+", "choices": default}
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=default,
            help=f"default: {default}",
            **kind,
        )
    return parser.parse_args()


def finish(figures: Figures, goals: Mapping[str, bool | str]) -> NoReturn:
    """Prints the result and exits; a goal is true, false or "not run"."""
    result = {**figures, "goals": goals}
    print(*rows(result), sep="\n")
    print(json.dumps(result))
    sys.exit(0 if all(goals.values()) else 1)


def rows(figures: Figures, margin: str = "") -> Iterator[str]:
    """Yields lines for a reader: a table where several entries have the same columns."""
    for name, value in figures.items():
        if not isinstance(value, Mapping):
            yield f"{margin + name:<70} {_format(value)}"
        elif len(value) > 1 and all(_is_flat(entry) for entry in value.values()):
            yield from (margin + line for line in _table(name, value))
        else:
            yield f"{margin}{name}"
            yield from rows(value, f"{margin}  ")


def collect_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the values of each key, in the order of the rows."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    return columns


def _is_flat(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return not any(isinstance(entry, Mapping) for entry in value.values())


def _table(name: str, entries: Mapping[str, Figures]) -> Iterator[str]:
    columns = list[str]()
    for entry in entries.values():
        columns += [column for column in entry if column not in columns]
    lines = [[name, *columns]]
    for kind, entry in entries.items():
        cells = []
        for column in columns:
            cells.append(_format(entry[column]) if column in entry else "")
        lines.append([kind, *cells])
    widths = []
    for column in zip(*lines, strict=True):
        widths.append(max(map(len, column)))
    for line in lines:
        padded = []
        for cell, width in zip(line, widths, strict=True):
            padded.append(cell.ljust(width))
        yield "  ".join(padded).rstrip()


def _format(value: object) -> str:
    """Formats a value; a list of numbers becomes its median and range."""
    if _is_sample(value):
        return f"{median(value):.4g} ({min(value):.4g} to {max(value):.4g})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _is_sample(value: object) -> TypeGuard[Sequence[float]]:
    if not isinstance(value, list | tuple) or len(value) < 3:
        return False
    return all(isinstance(number, int | float) for number in value)


def run_sections(
    sections: Mapping[str, Callable[[], Figures]], names: Collection[str]
) -> dict[str, Any]:
    """Runs the named sections; shows the figures and the time of each as soon as it ends."""
    figures: dict[str, Any] = {}
    for name in names:
        start = time.monotonic()
        section = dict(sections[name]())
        section[f"{name}{SECTION_TIME}"] = round(time.monotonic() - start, 1)
        print(*rows(section), sep="\n", file=sys.stderr, flush=True)
        figures |= section
    return figures


def judge_goals(goals: Goals, figures: Figures) -> dict[str, bool | str]:
    """Judges each goal; "not run" if its section was left out or says why it could not run."""
    verdicts: dict[str, bool | str] = {}
    for section, tests in goals.items():
        ran = f"{section}{SECTION_TIME}" in figures and f"{section}_not_run" not in figures
        for goal, is_met in tests.items():
            verdicts[goal] = is_met(figures) if ran else "not run"
    return verdicts
