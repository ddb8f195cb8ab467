"""Prints tables, sentences and JSON objects of commands.

Data goes to standard output; off a terminal without color or cut lines.
"""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence


def print_json(thing: str, **fields: object) -> None:
    print(json.dumps({"schema": f"holdfast.{thing}/1", **fields}, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Prints aligned rows; off a terminal plain ones, whatever their width."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for column in columns:
        table.add_column(column, no_wrap=not sys.stdout.isatty(), overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # In a pipe rich would wrap at 80 columns, and grep would find half an address. It cuts what is
    # wider than its width.
    width = None if sys.stdout.isatty() else 1_000_000
    # Addresses hold brackets, which markup would swallow.
    Console(width=width, highlight=False, markup=False).print(table)


def print_sentences(*sentences: str) -> None:
    """Prints each on a line of its own. Only on a terminal, lines that are too long for it break,
    and always between words.
    """
    for sentence in sentences:
        if sys.stdout.isatty():
            sentence = _wrap(sentence, shutil.get_terminal_size().columns)
        print(sentence)


def _wrap(sentence: str, columns: int) -> str:
    # An address is copied whole.
    return textwrap.fill(
        sentence,
        width=columns,
        break_long_words=False,
        break_on_hyphens=False,
    )
