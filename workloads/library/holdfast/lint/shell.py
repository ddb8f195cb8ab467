"""Finds sleeps, traps and lost exit codes in a container's script, by patterns.

Each pattern takes linear time: no text makes it scan far ahead and give up at more than one place.
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
_PIPED = re.compile(r"\b(?:python3?|torchrun|accelerate)\s[^|\n;]{0,500}\|\s{0,9}tee\b")
_EXIT_ZERO = re.compile(r"\bexit\s+0\b")
_STOPS_ON_ERROR = re.compile(r"\bset -[a-z]{0,5}e|\bpipefail\b")
MAX_TRAPS = 20


def slept_s(script: str) -> float | None:
    """Returns the seconds that a script sleeps, by the shell or by Python.

    None where it sleeps in a loop, or as long as a variable says.
    """
    script = _COMMENT.sub("", script)
    in_loop = bool(_LOOP.search(script))
    seconds = 0.0
    for match in _SLEEP.finditer(script):
        durations = match[1].split()
        if not durations or in_loop:
            return None
        seconds += sum(map(_parse_duration, durations))
    return seconds


def _parse_duration(word: str) -> float:
    if word.startswith("inf"):
        return inf
    unit = _UNITS.get(word[-1])
    return float(word[:-1]) * unit if unit else float(word)


def handlers(script: str) -> list[str]:
    """Returns the commands that traps of SIGTERM run. An empty one ignores the signal.

    A function that a trap names is replaced by its body.
    """
    script = _COMMENT.sub("", script)
    commands: list[str] = []
    for match in _TRAP.finditer(script):
        handler = match[1]
        signals = match[2].split()
        if len(commands) < MAX_TRAPS and not _TERM.isdisjoint(signals):
            commands.append(_get_handler(handler, script))
    return commands


def _get_handler(handler: str, script: str) -> str:
    if handler[0] in "'\"":
        return handler[1:-1]
    function = re.search(
        rf"\b{re.escape(handler)}\s{{0,9}}(?:\(\s{{0,9}}\))?\s{{0,9}}\{{([^{{}}]*)\}}", script
    )
    return function[1] if function else handler


def exits_zero_on_term(script: str) -> bool:
    in_bash = script.partition("\n")[0].rpartition("/")[2] == "bash"
    for body in handlers(script):
        if _EXIT_ZERO.search(body):
            return True
        # In bash an exit without a code ends with that of the command before it, in other shells
        # with the signal's.
        if in_bash and _BARE_EXIT.search(body):
            return True
    return False


def loses_code_in_pipe(script: str) -> bool:
    """Returns whether a program of Python is piped into tee, and nothing reads its exit code."""
    has_reader = "pipefail" in script or "PIPESTATUS" in script
    return not has_reader and bool(_PIPED.search(script.replace("\\\n", " ")))


def loses_exit_code(script: str) -> bool:
    """Returns whether the script succeeds however its program ended."""
    script = script.strip()
    if not _LOST.search(script[-60:]):
        return False
    has_several_commands = re.search(r"[;\n]", script.rstrip(";"))
    return not (_STOPS_ON_ERROR.search(script) and has_several_commands)
