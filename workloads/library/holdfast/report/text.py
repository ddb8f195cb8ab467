"""Formats numbers and durations as text."""


def plural(number: int, noun: str) -> str:
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


def precise_duration(seconds: float) -> str:
    """Formats a duration, below a minute with tenths of a second."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def duration(seconds: float) -> str:
    # Minutes begin at two: "1 min" for 89 s would hide a third of it.
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def percent(share: float) -> str:
    return f"{share:.1%}"


def seconds(us: int) -> str:
    return f"{us / 1e6:,.1f}"
