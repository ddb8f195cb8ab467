"""Just enough of a shell to read what a container's script does at its end: its commands, sleeps and traps.

One pass over the text, whatever it is; what is no shell reads as odd words.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from math import prod

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
    rounds: list[float] = []  # of each loop that is open
    for command in commands(script):
        if command[0] in ("for", "while", "until"):
            rounds.append(_rounds(command))
        elif rounds and (counted := _counted(command)):
            rounds[-1] = counted
        elif rounds and command[0] == "done":
            rounds.pop()
        for n, word in enumerate(command):
            slept = sum(map(_duration_s, command[n + 1 :])) if word.rpartition("/")[2] == "sleep" else 0.0
            total += slept * prod(rounds) if slept else 0.0
    return total


def _rounds(loop: Command) -> float:
    """Of `for x in a b c` three; of a condition that counts its bound; of any other condition no end."""
    if loop[0] == "for":
        return max(1, len(loop) - 3)
    bounds = [after for test, after in pairwise(loop) if test in ("-lt", "-le", "-gt", "-ge")]
    return next((float(bound) for bound in bounds if _is_count(bound)), float("inf"))


def _counted(command: Command) -> float:
    """Of `$(seq 10)` and `{1..10}` in the head of a loop ten; of any other command none."""
    words = command[1:] if command[0] == "seq" else command[0].split("..") if len(command) == 1 else []
    if not 1 <= len(words) <= 3 or not all(map(_is_count, words)):
        return 0.0
    return max(0.0, float(words[-1]) - (float(words[0]) - 1 if len(words) > 1 else 0.0))


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 9


def _duration_s(word: str) -> float:
    if word in ("infinity", "inf"):
        return float("inf")
    match = _DURATION.fullmatch(word)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def exits_zero_on_term(script: str) -> bool:
    """Whether a trap of SIGTERM, or a function that it calls, ends with `exit 0`."""
    listed = list(commands(script))
    handlers = _handlers(listed)
    functions = _functions(listed) if handlers else {}
    in_bash = listed[0][0].rpartition("/")[2] == "bash" if listed else False
    for handler in handlers:
        steps = [each for command in commands(handler) for each in (command, *functions.get(command[0], ()))]
        # In bash an exit without a code ends with that of the command before it, in other shells with the signal's.
        if any(map(_exits_zero, steps)) or (in_bash and ["exit"] in steps[1:]):
            return True
    return False


def ignores_term(script: str) -> bool:
    return "" in _handlers(list(commands(script)))


def _handlers(listed: list[Command]) -> list[str]:
    """What traps of SIGTERM run; an empty one ignores the signal."""
    return [c[1] for c in listed if len(c) > 2 and c[0] == "trap" and _TERM & set(c[2:])]


_LOST = re.compile(r"(?:\|\|\s{0,9}(?:true|:)|[;\n]\s{0,9}exit 0)\s{0,9};?$")


def loses_exit_code(script: str) -> bool:
    """Whether the script ends well however its program ended."""
    tail, stops = script.strip()[-60:], re.search(r"\bset -[a-z]{0,5}e|\bpipefail\b", script)
    several = re.search(r"[;\n]", script.strip().rstrip(";"))
    return bool(_LOST.search(tail)) and not (stops and several)


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
