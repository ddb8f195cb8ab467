"""Makes foreign text safe for a terminal or CI log: no escapes, lines or workflow commands."""

MOST_CHARACTERS = 400


def printable(text: str, limit: int = MOST_CHARACTERS) -> str:
    """Returns one line without control characters, cut to `limit`; they become escapes.

    GitHub's runner takes `##[` anywhere in a line for a command, which is changed here. It also
    takes `::` at the start of a line, which the caller must avoid.
    """
    line = text if len(text) <= limit else text[:limit] + "..."
    if not line.isprintable():
        line = "".join(_escape(character) for character in line)
    return line.replace("##[", "#_[")


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
