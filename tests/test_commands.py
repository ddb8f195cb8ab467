"""The command lines start fast and speak one grammar; a cloud is never reached without a name."""

import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from holdfast.support.command_line import run_app
from holdfast.vocabulary.environment import ENV_JOB, ENV_TRACEBACK
from holdfast.vocabulary.exit_codes import EXIT_BUG
from tests.command_lines import APPS, COMMANDS, build
from tests.support import ROOT, ran
from tests.test_options import run_command

PROGRAMS = ("holdfast", "infra", "workloads", "monitoring")
HEAVY = ("torch", "cdktf", "jsii", "altair", "google", "kubernetes", "numpy", "psycopg")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.process
def test_help_tells_the_exit_codes_and_imports_nothing_heavy(name: str) -> None:
    code = (
        "import json, runpy, sys\n"
        f"sys.argv = [{name!r}, '--help']\n"
        "try:\n"
        f"    runpy.run_module({name!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))\n"
    )
    done = ran([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert "0 done" in " ".join(done.stdout.split()), "the exit codes"


@pytest.mark.parametrize("name", PROGRAMS[1:])
@pytest.mark.process
def test_a_python_that_was_not_set_up_is_told_the_way_out(name: str) -> None:
    # without the packages of its environment
    done = ran([sys.executable, "-S", "-m", name, "--help"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert "without typer" in done.stderr
    assert "fix:     make setup && source .venv/bin/activate" in done.stderr
    assert "Traceback" not in done.stderr


# These pass their words on, or are started by the library with words of its own.
WITHOUT_HELP = {
    "infra/ops/bundled_terraform.py",
    "workloads/library/holdfast/inference/predictor/process.py",
}
# They import torch first. The library's tests show their help in processes that share that import.
TRAINING_PROGRAMS = (
    "workloads/library/holdfast/training/examples/",
    "workloads/library/holdfast/drill/naive.py",
)
GUARD = 'if __name__ == "__main__":'
LIBRARY = "workloads/library/"


def list_user_programs() -> list[str]:
    """Lists product modules and scripts that run by themselves, as `python -m` or by path."""
    patterns = (".ci/*.py", "infra/*.py", "monitoring/*.py", "workloads/*.py")
    listed = ran(["git", "ls-files", *patterns]).stdout.splitlines()
    product = []
    for name in listed:
        is_training = name.startswith(TRAINING_PROGRAMS)
        if "/tests/" not in name and name not in WITHOUT_HELP and not is_training:
            product.append(name)
    names: list[str] = []
    for name in product:
        if GUARD in (ROOT / name).read_text():
            names.append(name)
    return names


def list_words(file: str) -> list[str]:
    if file.startswith(".ci/"):
        return [str(ROOT / file)]
    module = (
        file.removeprefix(LIBRARY).removesuffix(".py").replace("/", ".").removesuffix(".__main__")
    )
    return ["-m", module]


@pytest.mark.process
@pytest.mark.parametrize("file", list_user_programs())
def test_help_is_shown_and_nothing_is_done(file: str, tmp_path: Path) -> None:
    variables = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / LIBRARY}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = ran([sys.executable, *list_words(file), "--help"], tmp_path, variables)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("a framework of an environment of its own")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().lower().startswith("usage:"), done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unknown_command_is_a_usage_error(name: str) -> None:
    assert run_command(name, ["no-such-verb"])[0] == 2


def start(name: str) -> None:
    """A program in this process."""
    spec = find_spec(f"{name}.__main__")
    assert spec
    assert spec.origin
    runpy.run_path(spec.origin, run_name="__main__")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bug_is_no_finding(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python's own exit code of a traceback is 1, and 1 means findings."""

    def bug(*_: object, **__: object) -> None:
        raise KeyError("step")

    monkeypatch.setattr(typer.Typer, "__call__", bug)
    monkeypatch.setattr(sys, "argv", [name])
    for variable in (ENV_JOB, ENV_TRACEBACK):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SystemExit) as end:
        start(name)
    assert end.value.code == EXIT_BUG
    head, location = capsys.readouterr().err.splitlines()
    assert head.startswith("internal error: KeyError: 'step'")
    assert "report it" in location


MAKEFILE = (ROOT / "Makefile").read_text()
# Target -> our commands in its recipe, with their flags.
RUNS: dict[str, list[str]] = {}
COMMAND = re.compile(
    r"(?:@|\$\(PY\) -m )((?:holdfast|infra|workloads|monitoring)(?: (?:--)?[a-z-]+|"
    r" \$\((?:NAMED_)?ENV\))+)"
)
for _target, _recipe in re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", MAKEFILE, re.M):
    RUNS[_target] = [re.sub(r" \$\([^ ]*", "", line) for line in COMMAND.findall(_recipe)]
WITHOUT_ENVIRONMENT = {"demo", "drill", "lint", "render", "rules"}
CLOUD = re.findall(r"^([a-z-]+):.*\n(?:\t.*\n)*?\t.*NAMED_ENV", MAKEFILE, re.M)


def test_each_make_target_runs_one_unique_command() -> None:
    first_commands = {}
    for target, commands in RUNS.items():
        if commands:
            first_commands[target] = commands[0]
    assert len(first_commands) > 20
    assert all(len(commands) <= 1 for commands in RUNS.values())
    for command in first_commands.values():
        assert any(f"{command} ".startswith(f"{name} ") for name in COMMANDS), first_commands
    assert len(first_commands) == len(set(first_commands.values())), first_commands
    assert {"deploy", "destroy", "apply", "images", "prove", "bootstrap"} <= {*CLOUD}
    unnamed = {*first_commands} - {*CLOUD} - WITHOUT_ENVIRONMENT
    assert unnamed == {
        "synth",
        "plan",
        "upgrade-check",
        "check-env",
    }, "does a new target touch a cloud or a cluster?"


@pytest.mark.parametrize("target", CLOUD)
def test_a_cloud_is_never_reached_without_a_name(target: str) -> None:
    def make(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {}
        for name, value in os.environ.items():
            if name != "ENV":
                environment[name] = value
        return ran(
            [
                "make",
                "--dry-run",
                target,
                "MAX_USD=1",
                *words,
            ],
            ROOT,
            environment,
        )

    refused = make()
    assert refused.returncode == 2
    assert "got no ENV" in refused.stderr
    assert f"fix: make {target} ENV=NAME" in refused.stderr
    assert make("ENV=eu").returncode == 0


def test_only_what_reads_this_checkout_has_an_environment_by_default() -> None:
    taken = {}
    for name in COMMANDS:
        for p in COMMANDS[name].params:
            if p.name in ("env", "environment"):
                taken[name] = p
    assumed = set()
    for name, p in taken.items():
        if not p.required and p.default not in (None, ""):
            assumed.add(name)
    assert assumed <= {"infra check", "workloads render"}
    names = {name for name in COMMANDS if name.split()[0] in ("infra", "workloads")}
    assert names - set(taken) == {"infra new"}


def list_groups() -> list[str]:
    """Return the programs and groups of commands, by what is in them."""
    groups = set(APPS)
    for name in COMMANDS:
        program, *words = name.split()
        if len(words) > 1:
            groups.add(f"{program} {words[0]}")
    return sorted(groups)


def read_help(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *words = name.split()
    with contextlib.suppress(SystemExit):
        run_app(APPS[program], [*words, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("group", list_groups())
def test_no_sentence_is_cut_at_80_columns(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = read_help(group, capsys)
    assert "..." not in shown.partition("\n\n")[2]
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_help_fits_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Examples are longer: a line that is broken cannot be copied."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.split(r"Examples?:", read_help(name, capsys))[0]
    assert shown
    for line in shown.splitlines():
        assert len(line) <= 80, line


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_help_repeats_no_word(name: str) -> None:
    text = " ".join(COMMANDS[name].help.split())
    assert re.search(r"\b([A-Za-z]{3,}[.,]?) \1(?!\w)", text) is None


def test_json_page_has_each_platform_command() -> None:
    """Its fields, and the commands of holdfast, are compared by the library's tests."""
    page = (ROOT / "workloads/library/docs/reference/json-outputs.md").read_text()
    table = page.partition("## Commands of the platform\n")[2].partition("\n## ")[0]
    commands = set()
    for name, command in COMMANDS.items():
        if name.startswith("holdfast "):
            continue
        for parameter in command.params:
            if "--json" in parameter.opts:
                commands.add(name)
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.M)) == commands


def test_holdfast_lists_commands_by_task_without_cluster_processes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with contextlib.suppress(SystemExit):
        run_app(APPS["holdfast"], ["--help"])
    shown = capsys.readouterr().out
    panels = re.findall(r"^([A-Z][a-z]+):$", shown, re.M)
    assert panels == ["Options", "Run", "Look", "Check", "Operate"]
    listed = set(re.findall(r"^  ([a-z-]+)  ", shown, re.M))
    commands = build(APPS["holdfast"]).commands
    assert {*commands} - listed == {"export", "move"}
    hidden = []
    for name, command in COMMANDS.items():
        if command.hidden:
            hidden.append(name)
    assert sorted(hidden) == [
        "holdfast export",
        "holdfast move",
        "holdfast serve endpoints",
        "holdfast train ranks",
    ]


def test_commands_and_options_are_few() -> None:
    tops = set()
    for name in COMMANDS:
        tops.add(" ".join(name.split()[:2]))
    assert len(COMMANDS) <= 56
    assert len(tops) <= 40
    for name, command in COMMANDS.items():
        assert len(command.params) <= 14, name
