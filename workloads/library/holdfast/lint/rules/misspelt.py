"""HF837 to HF839: programs, shell variables and options that are nearly the right ones.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Pod, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.scripts import find_script, list_programs
from holdfast.lint.rules.servers import find_server
from holdfast.lint.spelling import count_differences, find_near
from holdfast.vocabulary import environment

DOC_POD = (
    "https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/"
)
DOC_VARIABLES = "https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-container/"
DOC_SERVERS = "https://docs.vllm.ai/en/latest/cli/serve/"
_READ = re.compile(r"(?<![\\$])\$\{?([A-Z][A-Z0-9_]{3,80})(?![A-Za-z0-9_])")
_SET = re.compile(r"(?:^|[\s;(])(?:export |local |declare |readonly )?([A-Za-z_]\w{0,80})=")
_TAKEN = re.compile(r"\b(?:read|for|getopts)\s+(?:-\w+\s+)*(\w{1,80})")
_NEAR = 0.85
_SHORTEST = 5


def _run(program: str) -> str:
    return f"""\
command:
- {program}
- -m
- trainer
"""


@rule(
    "HF837",
    "program-misspelt",
    Severity.ERROR,
    on=Pod,
    what="A command or a script runs a program whose name is a typing error of a known one.",
    why="The container does not start, or its script ends with `command not found`.",
    source=DOC_POD,
    fix="correct the name",
    base="container",
    bad=_run("pythno"),
    good=_run("python"),
)
def check_programs(pod: Pod, context: Context) -> Iterator[Hit]:
    known_programs = load_table("programs")["names"]
    meant_programs = load_table("programs")["meant"]
    for container in pod.containers:
        script = find_script(container)
        text = script.text if script else ""
        for path, program in list_programs(container):
            is_own = f"{program}()" in text or f"function {program}" in text
            if program in known_programs or len(program) < _SHORTEST or is_own:
                continue
            for meant_program in meant_programs:
                if _is_typing_error(program, meant_program):
                    yield Hit(path, f"no program {program}; did you mean {meant_program}?")


def _is_typing_error(word: str, name: str) -> bool:
    """Returns whether a word has the letters of a name in another order, or one wrong."""
    if len(name) < _SHORTEST or abs(len(word) - len(name)) > 1 or not word.isalpha():
        return False
    if sorted(word) == sorted(name):
        return True
    return word[0] == name[0] and count_differences(word, name) == 1


def _score(variable: str) -> str:
    return f"""\
command:
- bash
- -c
- exec python score.py --part=${variable}
"""


@rule(
    "HF838",
    "shell-variable-misspelt",
    Severity.ERROR,
    on=Pod,
    what="A script reads a variable whose name is nearly one that the container has.",
    why="The shell puts an empty text there, or ends where `set -u` is on.",
    source=DOC_VARIABLES,
    fix="correct the name",
    base="container",
    bad=_score("JOB_COMPLETION_IDX"),
    good=_score("JOB_COMPLETION_INDEX"),
)
def check_variables(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        script = find_script(container)
        if script is None or container.body.get("envFrom"):
            continue
        known_names = {name for _, name, _ in container.variables}
        if pod.job:
            known_names.add(environment.ENV_COMPLETION_INDEX)
        own_names = set(_SET.findall(script.text)) | set(_TAKEN.findall(script.text))
        public_names = set(load_table("variables")["names"])
        for name in sorted(set(_READ.findall(script.text)) - own_names - public_names):
            near_name = find_near(name, known_names, _NEAR) if name not in known_names else ""
            is_numbered = near_name.rstrip("0123456789") == name.rstrip("0123456789")
            if near_name and not is_numbered:
                yield Hit(script.path, f"no variable {name}; did you mean {near_name}?")


def _serve(option: str) -> str:
    return f"""\
image: vllm/vllm-openai:v0.10.2
command: null
args:
- {option}=Qwen/Qwen2.5-7B-Instruct
"""


@rule(
    "HF839",
    "option-of-another-server",
    Severity.ERROR,
    on=Pod,
    what="A server of models gets an option of another server.",
    why="It ends at its start with a usage message, or goes on without the setting.",
    source=DOC_SERVERS,
    fix="use the option of this server",
    base="serving-container",
    bad=_serve("--model-id"),
    good=_serve("--model"),
)
def check_servers(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        table = load_table("foreign_options").get(find_server(container), {})
        for word in container.arguments if table else ():
            option = word.partition("=")[0].lstrip("-").replace("_", "-")
            right_option = as_text(table.get(option)) if word.startswith("--") else ""
            if right_option:
                server = find_server(container)
                message = f"{server} has no --{option}; it has --{right_option}"
                yield Hit(container.command_path, message)
