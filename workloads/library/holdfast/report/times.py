"""Lengths of time as text. Pure."""


def exactly(seconds: float) -> str:
    """With tenths while they matter."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def duration(seconds: float) -> str:
    # Later than a minute on purpose: "1 min" for 89 s would hide half of it.
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
