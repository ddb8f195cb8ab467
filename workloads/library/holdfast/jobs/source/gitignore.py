"""Decides which files git would ignore, by the text of `.gitignore` files.

git itself is not asked: the folder may be no repository, and the machine may have no git.

Decision: infra/decisions/0176 (why not pathspec).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

NAME = ".gitignore"
_ESCAPED_OPENINGS = ("\\#", "\\!")
_SPECIAL_IN_CLASS = "[]&^~|"


@dataclass(frozen=True, slots=True)
class Pattern:
    regex: re.Pattern[str]
    """Matches a path below the folder of the file."""
    folder: str
    """Folder of the file that has the pattern, with a slash at the end; empty: the root."""
    negates: bool
    folders_only: bool


def parse(text: str, folder: str = "") -> list[Pattern]:
    """Return the patterns of a `.gitignore` in `folder`, in their order."""
    patterns: list[Pattern] = []
    for line in text.splitlines():
        pattern = _parse_line(line, folder)
        if pattern is not None:
            patterns.append(pattern)
    return patterns


def is_ignored(patterns: Iterable[Pattern], path: str, *, is_folder: bool) -> bool:
    """Return whether the patterns ignore a path below the root. The last match decides.

    Files of an ignored folder are ignored, whatever other patterns say; the caller does not ask
    about them.
    """
    ignored = False
    for pattern in patterns:
        if not path.startswith(pattern.folder) or (pattern.folders_only and not is_folder):
            continue
        if pattern.regex.fullmatch(path[len(pattern.folder) :]):
            ignored = not pattern.negates
    return ignored


def _parse_line(line: str, folder: str) -> Pattern | None:
    line = _strip_spaces(line)
    if not line or line.startswith("#"):
        return None
    negates = line.startswith("!")
    if negates or line.startswith(_ESCAPED_OPENINGS):
        line = line[1:]
    folders_only = line.endswith("/")
    glob = line.rstrip("/") if folders_only else line
    if not glob:
        return None
    # A pattern without a slash matches in every folder below.
    is_anchored = "/" in glob
    glob = glob.removeprefix("/")
    if not is_anchored:
        glob = f"**/{glob}"
    try:
        regex = re.compile(_translate(glob), re.DOTALL)
    except re.error:  # git matches nothing with it
        return None
    return Pattern(regex, folder, negates, folders_only)


def _strip_spaces(line: str) -> str:
    """Remove trailing spaces, except one behind a backslash."""
    stripped = line.rstrip(" ")
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    if backslashes % 2 and stripped != line:
        return stripped + " "
    return stripped


def _translate(glob: str) -> str:
    """Return a glob of git as a regular expression."""
    segments = glob.split("/")
    parts: list[str] = []
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment == "**":
            parts.append(".+" if is_last else "(?:.+/)?")
            continue
        parts.append(_translate_segment(segment))
        if not is_last:
            parts.append("/")
    return "".join(parts)


def _translate_segment(segment: str) -> str:
    parts: list[str] = []
    position = 0
    while position < len(segment):
        letter = segment[position]
        position += 1
        if letter == "*":
            parts.append("[^/]*")
        elif letter == "?":
            parts.append("[^/]")
        elif letter == "[":
            text, position = _translate_class(segment, position)
            parts.append(text)
        elif letter == "\\" and position < len(segment):
            parts.append(re.escape(segment[position]))
            position += 1
        else:
            parts.append(re.escape(letter))
    return "".join(parts)


def _translate_class(segment: str, start: int) -> tuple[str, int]:
    """Return a class such as `[!a-c]`, and the position behind it."""
    is_negated = segment.startswith(("!", "^"), start)
    first = start + 1 if is_negated else start
    # A bracket that comes first is a letter of the class.
    end = segment.find("]", first + 1)
    if end < 0:
        raise re.error("a bracket that is not closed")
    negation = "^/" if is_negated else ""
    letters = segment[first:end]
    for letter in _SPECIAL_IN_CLASS:
        letters = letters.replace(letter, f"\\{letter}")
    return f"[{negation}{letters}]", end + 1
