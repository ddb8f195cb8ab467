"""Options of processes that are durations: `90s`, `15m`, `72h`, `7d`.

A bare number is seconds: manifests and variables such as HOLDFAST_WINDOW_SECONDS hold those.
"""

from typing import Any

import typer

from holdfast.support.values import duration_s


def duration_option(help_text: str, **settings: Any) -> Any:
    """Returns an option of the type float, in seconds."""
    return typer.Option(
        help=help_text,
        parser=parse_seconds,
        metavar="<duration>",
        **settings,
    )


def parse_seconds(value: str | float) -> float:
    """Returns the seconds of a duration. Raises Typer's error, which names the option."""
    if not isinstance(value, str):
        return float(value)
    seconds = duration_s(value)
    if seconds is None:
        seconds = duration_s(f"{value.strip()}s")
    if seconds is None:
        raise typer.BadParameter(f"{value!r} is no duration such as 90s, 15m, 72h or 7d")
    return seconds
