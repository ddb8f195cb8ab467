"""Foreign text on a terminal or in a CI log: no escapes, no lines of its own, no workflow commands."""

MOST_CHARACTERS = 400


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """One line without control characters, cut to `most`; what cannot be shown is replaced by its
    escape.

    GitHub's runner takes `##[` anywhere in a line for a command, and `::` at its beginning: that
    one is for the caller.
    """
    cut = text if len(text) <= most else text[:most] + "..."
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return cut.replace("##[", "#_[")
