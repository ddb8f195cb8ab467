"""Sleeps, traps and lost exit codes of a container's script, found by patterns. None: the script
does not tell.

Each pattern is linear: no text makes one start at a place and give up far behind it more than once.
"""

import re
from math import inf

_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_LOOP = re.compile(r"(?:^|[;&|({]|\b(?:do|then)\b)\s{0,99}(?:for|while|until)\s", re.MULTILINE)
_SLEEP = re.compile(
    r"""(?<![\w-])sleep[\s('"]+((?:(?:\d{1,9}(?:\.\d{1,9})?[smhd]?|inf(?:inity)?)\b\s{0,99})*)"""
)
_UNITS = {
    "s": 1.0,
    "m": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
}
_TRAP = re.compile(r"""\btrap\s+('[^']*'|"[^"]*"|[\w-]+)\s+([^;&|\n'"]*)""")
_TERM = frozenset({"TERM", "SIGTERM", "15"})
_BARE_EXIT = re.compile(r"[;\n]\s{0,99}exit\s{0,99};?$")
_LOST = re.compile(r"(?:\|\|\s{0,9}(?:true|:)|[;\n]\s{0,9}exit 0)\s{0,9};?$")
MOST_TRAPS = 20


def slept_s(script: str) -> float | None:
    """Seconds that a script sleeps, by the shell or by Python; None where it sleeps in a loop, or
    as a variable says.
    """
    script = _COMMENT.sub("", script)
    stated = [match[1].split() for match in _SLEEP.finditer(script)]
    if not all(stated) or (stated and _LOOP.search(script)):
        return None
    return sum(_seconds(word) for words in stated for word in words)


def _seconds(word: str) -> float:
    unit = _UNITS.get(word[-1])
    if word.startswith("inf"):
        return inf
    return float(word[:-1]) * unit if unit else float(word)


def handlers(script: str) -> list[str]:
    """What traps of SIGTERM run, with the body of a function that they name. An empty one ignores
    the signal.
    """
    script = _COMMENT.sub("", script)
    found = [match for match in _TRAP.finditer(script) if _TERM & set(match[2].split())]
    return [_body(match[1], script) for match in found[:MOST_TRAPS]]


def _body(handler: str, script: str) -> str:
    if handler[0] in "'\"":
        return handler[1:-1]
    function = re.search(
        rf"\b{re.escape(handler)}\s{{0,9}}(?:\(\s{{0,9}}\))?\s{{0,9}}\{{([^{{}}]*)\}}", script
    )
    return function[1] if function else handler


def exits_zero_on_term(script: str) -> bool:
    in_bash = script.partition("\n")[0].rpartition("/")[2] == "bash"
    # In bash an exit without a code ends with that of the command before it, in other shells with
    # the signal's.
    return any(
        re.search(r"\bexit\s+0\b", body) or (in_bash and _BARE_EXIT.search(body))
        for body in handlers(script)
    )


def loses_exit_code(script: str) -> bool:
    """Whether the script succeeds however its program ended."""
    stops = re.search(r"\bset -[a-z]{0,5}e|\bpipefail\b", script) and re.search(
        r"[;\n]", script.strip().rstrip(";")
    )
    return bool(_LOST.search(script.strip()[-60:])) and not stops
