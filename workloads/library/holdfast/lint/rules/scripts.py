"""HF794 to HF797: scripts in commands that the shell refuses, or that lack their programs.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import (
    MAX_SCRIPT,
    PROBES,
    SHELLS,
    Container,
    Pod,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule

DOC_SHELL = "https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html"
DOC_POD = (
    "https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/"
)
DOC_SH = "https://wiki.ubuntu.com/DashAsBinSh"
DOC_IMAGES = "https://docs.docker.com/docker-hub/repos/manage/trusted-content/official-images/"
_FLAG = re.compile(r"-[a-z]{0,8}c")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_LITERAL = re.compile(r"'[^']*'")
# A quote that is not closed matches to the end of the text: looking for one at each escaped quote
# in it would take quadratic time.
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\[\s\S])*(\"?)")
# Words that open something, and the one that closes it.
_OPENINGS = (
    (re.compile(r"(?:^|[;\n])[ \t]*do(?=\s)"), "do", "done"),
    (re.compile(r"(?:^|[;\n])[ \t]*then(?=\s)"), "then", "fi"),
    (re.compile(r"(?:^|[;\n])[ \t]*case[ \t][^\n;]{1,200}[ \t]in(?=\s)"), "case", "esac"),
)
_FOLDED = re.compile(
    r"(?:^|[;\n])[ \t]*set (?:-[euxo]{1,4} ){1,4}(?:pipefail )?(?!-|pipefail)([a-z][\w./-]{0,80})"
)
_SPACED = re.compile(r"(?:^|[;\n])[ \t]*export (\w{1,80}) +=")
_CONTINUED = re.compile(r"[\w\"'] \\[ \t]+\n[ \t]*-")
_OF_BASH = re.compile(
    r"(?:^|[;&|\n]|\bif|\bwhile)[ \t]*(\[\[|source)[ \t]|(\bpipefail\b)|(?<![<\w])(<\()"
    r"|(?:^|[;\n])[ \t]*(?:\w{1,80}=(\()|(function)[ \t])"
)
# Images whose `sh` takes these.
_LENIENT = ("alpine", "busybox", "ubi", "rhel", "centos", "rocky", "fedora", "amazon", "curl")
_IN_BACKGROUND = re.compile(r"(?<![&>|])&$")
_WAITS = re.compile(r"\b(wait|sleep|tail|fg|exec)\b")
_SEPARATOR = re.compile(r"&&|\|\||[;|&\n(){}]|\b(?:then|do|else|until|while|if|exec|time|!)(?=\s)")
_ASSIGNMENT = re.compile(r"\w{1,80}=\S{0,300}")
_INSTALLS = re.compile(r"\b(?:apk|apt|apt-get|yum|dnf|microdnf|pip|pip3|conda|uv|brew)\s+\S")
_LONGEST_COMMANDS = 200


@dataclass(frozen=True, slots=True)
class Script:
    """The text that a shell gets."""

    path: Path
    shell: str
    text: str


def find_script(container: Container) -> Script | None:
    """Returns the script of a shell; None where the command is another program."""
    words = list(container.list_words())
    if not words or words[0][1].rpartition("/")[2] not in SHELLS:
        return None
    for index, (_, word) in enumerate(words[1:-1], start=1):
        if _FLAG.fullmatch(word):
            path, text = words[index + 1]
            shell = words[0][1].rpartition("/")[2]
            return Script(path, shell, text[:MAX_SCRIPT])
        if not word.startswith(("-", "+")):
            return None
    return None


def _is_quoted_evenly(text: str) -> bool:
    """Returns whether each quote of a script is closed."""
    quote = ""
    previous = "\n"
    letters = iter(text)
    for letter in letters:
        if letter == "\\" and quote != "'":
            next(letters, "")
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and previous in " \t\n;":
            for skipped in letters:
                if skipped == "\n":
                    break
        previous = letter
    return not quote


def _strip(text: str) -> str:
    """Returns a script without comments and quoted texts."""
    return _QUOTED.sub(_empty_quoted, _COMMENT.sub("", text))


def _empty_quoted(match: re.Match[str]) -> str:
    is_open = match[1] == ""
    return _LITERAL.sub('""', match[0]) if is_open else '""'


def _write_loop(end: str) -> str:
    return f"""\
command:
- bash
- -c
- |
  set -euo pipefail
  for part in a b; do
    echo $part
  {end}
  exec python score.py
"""


@rule(
    "HF794",
    "script-not-parsed",
    Severity.ERROR,
    on=Pod,
    what="A script has a quote, a loop or a condition that is not closed, or was folded.",
    why="The shell ends with a syntax error, or takes the next command as an argument of `set`.",
    source=DOC_SHELL,
    fix="close it; write scripts in block style: |",
    base="container",
    bad=_write_loop("echo done"),
    good=_write_loop("done"),
)
def check_syntax(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        script = find_script(container)
        if script is None or "<<" in script.text or "$'" in script.text:
            continue
        if not _is_quoted_evenly(script.text):
            yield Hit(script.path, "a quote is not closed")
            continue
        text = _strip(script.text)
        for opening, start, end in _OPENINGS:
            is_closed = re.search(rf"(?:^|[;\n&)])[ \t]*{end}(?![\w-])", text)
            if opening.search(text) and not is_closed:
                yield Hit(script.path, f"{start} without {end}")
        match = _SPACED.search(text)
        if match:
            yield Hit(script.path, f"{match[1]} takes no value: there is a blank before =")
        if _CONTINUED.search(script.text):
            yield Hit(script.path, "a blank comes after \\ at the end of a line, which ends there")
        match = _FOLDED.search(text)
        if match:
            yield Hit(script.path, f"`set` takes {match[1]} as an argument: lines were folded")


def _write_test(shell: str) -> str:
    return f"""\
command:
- {shell}
- -c
- |
  if [[ -f /scratch/done ]]; then exit 1; fi
  exec python score.py
"""


@rule(
    "HF795",
    "script-of-another-shell",
    Severity.WARNING,
    on=Pod,
    what="A script that `sh` runs has syntax of bash.",
    why="`sh` of Debian and Ubuntu is dash, which ends with an error at it.",
    source=DOC_SH,
    fix="run it by bash, or write it for sh",
    base="container",
    bad=_write_test("sh"),
    good=_write_test("bash"),
)
def check_shell(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        script = find_script(container)
        image = as_text(container.body.get("image"))
        is_dash = script is not None and script.shell in ("sh", "dash")
        if script is None or not is_dash or any(name in image for name in _LENIENT):
            continue
        match = _OF_BASH.search(_strip(script.text))
        if match:
            word = next(filter(None, match.groups()))
            yield Hit(script.path, f"{word} is of bash, and the shell is {script.shell}")


def _write_init(image: str) -> str:
    return f"""\
initContainers:
- name: wait
  image: {image}
  command:
  - curl
  - -sf
  - http://registry.example
"""


@rule(
    "HF796",
    "program-not-in-the-image",
    Severity.ERROR,
    on=Pod,
    what="A command, a script, a probe or a hook runs a program that the image does not have.",
    why="It ends with `not found`: the container does not start, or never counts as ready.",
    source=DOC_IMAGES,
    fix="use an image that has the program",
    base="job-pod",
    bad=_write_init("busybox:1.36"),
    good=_write_init("curlimages/curl:8.10.1"),
)
def check_programs(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        missing = _list_missing(as_text(container.body.get("image"))[:300])
        for path, program in list_programs(container) if missing else ():
            if program in missing:
                yield Hit(path, f"{container.body['image']} has no {program}")
                break


def _list_missing(image: str) -> list[str]:
    """Lists the programs that an image lacks by the table."""
    name = image.removeprefix("docker.io/").removeprefix("library/")
    for beginning, programs in load_table("missing_programs").items():
        start, _, part = beginning.partition("*")
        if name.startswith(start) and part in name:
            return programs
    return []


def list_programs(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the programs that a container runs: by its command, its script, probes and hooks."""
    script = find_script(container)
    words = as_texts(container.body.get("command"))
    if words:
        yield container.command_path, words[0].rpartition("/")[2]
    if script and not _INSTALLS.search(script.text):
        for command in _SEPARATOR.split(_strip(script.text))[:_LONGEST_COMMANDS]:
            words = [word for word in command.split() if not _ASSIGNMENT.fullmatch(word)]
            if words:
                yield script.path, words[0].rpartition("/")[2]
    for field in (*PROBES, "lifecycle"):
        places = [(field,), (field, "preStop"), (field, "postStart")]
        for place in places:
            commands = as_texts(dig(container.body, *place, "exec", "command"))
            if commands:
                path = (*container.path, *place, "exec", "command")
                yield path, commands[0].rpartition("/")[2]


def _write_background(line: str) -> str:
    return f"""\
command:
- bash
- -c
- |
  set -e
  {line}
"""


@rule(
    "HF797",
    "ends-before-its-work",
    Severity.ERROR,
    on=Pod,
    what="A script starts its program in the background and ends.",
    why="The container ends with the script: the program is killed, and the Job is complete.",
    source=DOC_POD,
    fix="wait for it, or run it in the foreground",
    base="container",
    bad=_write_background("python score.py &"),
    good=_write_background("exec python score.py"),
)
def check_background(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        script = find_script(container)
        text = _strip(script.text).strip() if script else ""
        if script and _IN_BACKGROUND.search(text[-4:]) and not _WAITS.search(text):
            yield Hit(script.path, "ends while its program runs in the background")
