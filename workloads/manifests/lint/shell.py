"""Just enough of a shell to read what a container's script does at its end: its commands, sleeps and traps.

One pass over the text, whatever it is; what is no shell reads as odd words.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

Command = list[str]
# No alternative can be begun at a place and given up far behind it more than once, so this stays linear.
_TOKEN = re.compile(
    r"""(?P<quoted>'[^']*'|"[^"]*")|(?P<escaped>\\.)|(?P<comment>(?<![^\s;&|(){}])\#[^\n]*)"""
    r"""|(?P<separator>[;&|\n(){}])|(?P<space>[^\S\n]+)|(?P<plain>[^\s'"\\;&|(){}\#]+|.)""",
    re.DOTALL,
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)")
_PYTHON_SLEEP = re.compile(r"\bsleep\((\d{1,9}(?:\.\d{1,9})?)\)")
_TERM = frozenset({"TERM", "SIGTERM", "15"})


def commands(script: str) -> Iterator[Command]:
    """Simple commands in order, without quotes and comments. A group's braces and a function's `()` are words."""
    found: Command = []
    for word in _words(script):
        if word in (";", "\n", "&", "|"):
            if found:
                yield found
            found = []
        elif word in ("{", "}", "(", ")"):
            if found:
                yield found
            yield [word]
            found = []
        else:
            found.append(word)
    if found:
        yield found


def _words(script: str) -> Iterator[str]:
    pieces: list[str] = []
    for match in _TOKEN.finditer(script):
        kind, text = match.lastgroup, match.group()
        if kind in ("separator", "space"):
            if pieces:
                yield "".join(pieces)
            pieces = []
            if kind == "separator":
                yield text
        elif kind != "comment":
            pieces.append({"quoted": text[1:-1], "escaped": text[1:]}.get(kind or "", text))
    if pieces:
        yield "".join(pieces)


def slept_s(script: str) -> float:
    """Seconds that a script sleeps in all, by the shell or by Python; infinite for `sleep infinity`."""
    total = sum(float(seconds) for seconds in _PYTHON_SLEEP.findall(script))
    for command in commands(script):
        for n, word in enumerate(command):
            if word.rpartition("/")[2] == "sleep":
                total += sum(map(_duration_s, command[n + 1 :]))
    return total


def _duration_s(word: str) -> float:
    if word in ("infinity", "inf"):
        return float("inf")
    match = _DURATION.fullmatch(word)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def exits_zero_on_term(script: str) -> bool:
    """Whether a trap of SIGTERM, or a function that it calls, ends with `exit 0`."""
    listed = list(commands(script))
    handlers = [c[1] for c in listed if len(c) > 2 and c[0] == "trap" and _TERM & set(c[2:])]
    if not handlers:
        return False
    functions = _functions(listed)
    for handler in handlers:
        for command in commands(handler):
            if any(_exits_zero(each) for each in (command, *functions.get(command[0], ()))):
                return True
    return False


def _exits_zero(command: Command) -> bool:
    return any(pair == ("exit", "0") for pair in pairwise(command))


def _functions(listed: list[Command]) -> dict[str, list[Command]]:
    """Name -> commands, for `name() { ... }` and `function name { ... }`; bodies of nested groups end with their own."""
    found: dict[str, list[Command]] = {}
    name, depth = "", 0
    for n, command in enumerate(listed):
        if command == ["{"]:
            before = [c for c in listed[max(0, n - 3) : n] if c not in (["("], [")"])]
            name = before[-1][-1] if before and not depth else name
            depth += 1
        elif command == ["}"]:
            depth = max(0, depth - 1)
        elif depth and name:
            found.setdefault(name, []).append(command)
    return found
