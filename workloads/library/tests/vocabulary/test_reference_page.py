"""The page of exit codes and environment variables has all that the sources read or set."""

import re
import subprocess
from pathlib import Path

from holdfast.vocabulary import exit_codes

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "workloads/library/docs/reference/exit-codes-and-variables.md").read_text()
SOURCES = ("*.py", "*.toml", "*.yml", "*.yaml", "*.j2", "*.sh", "*.mk", "*Makefile", "*Dockerfile*")
# Variables of tests are known to tests only, except those by which people choose what to build.
TESTS = re.compile(r"(^|/)tests/(?!tools/)")
VARIABLE = re.compile(r"(?<![A-Z_])HOLDFAST_[A-Z0-9_]*[A-Z0-9]")


def read_sources() -> str:
    process = subprocess.run(
        ["git", "ls-files", "--", *SOURCES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = []
    for name in process.stdout.splitlines():
        if not TESTS.search(name):
            names.append(name)
    return "\n".join((ROOT / name).read_text() for name in names if (ROOT / name).is_file())


def read_codes(heading: str) -> set[int]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}


def test_every_variable_has_one_row() -> None:
    rows = re.findall(r"^\| (`HOLDFAST_[^|]*)\|", PAGE, re.MULTILINE)
    shown: list[str] = []
    for row in rows:
        shown += VARIABLE.findall(row)
    assert len(shown) == len(set(shown))
    used = set(VARIABLE.findall(read_sources()))
    assert len(used) > 30
    assert set(shown) == used


def test_every_exit_code_has_a_row() -> None:
    commands = set()
    for code in re.findall(r"\b\d+\b", exit_codes.EXIT_CODES_HELP):
        commands.add(int(code))
    assert read_codes("Exit codes of commands") == commands
    named = set()
    for name, value in vars(exit_codes).items():
        if re.match(r"EXIT_(?!CODES)", name):
            named.add(value)
    only_commands = {
        exit_codes.EXIT_FINDINGS,
        exit_codes.EXIT_NOT_JUDGED,
        exit_codes.EXIT_STOPPED,
    }
    assert read_codes("Exit codes of programs in pods") == named - only_commands
