"""Locks hold names, versions and hashes, never addresses; nothing of ours can run code from data."""

import ast
import importlib
import json
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from infra.contract.versions import CDKTF_CLI_VERSION

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
SOURCES = [f for p in ("infra", "workloads", "monitoring") for f in sorted((ROOT / p).rglob("*.py"))]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_a_lock_pins_and_hashes_everything_and_names_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(r"https?://|--index|--find-links", text)
    entries = re.findall(r"^[a-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*", text, re.MULTILINE)
    assert entries
    for entry in entries:
        assert "==" in entry.splitlines()[0], entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_a_node_lock_names_no_address() -> None:
    packages = json.loads((ROOT / "requirements/node/package-lock.json").read_text())["packages"]
    assert len(packages) > 100
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert not name or "integrity" in package or package.get("inBundle") or package.get("link"), name


def test_packages_are_looked_for_where_a_virtual_environment_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    bootstrap = importlib.import_module("bootstrap")
    # As Debian's Python does: its own default is another scheme than that of the environments it makes.
    monkeypatch.setattr(sysconfig.get_path, "__defaults__", ("nt_user", None, True))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert bootstrap.site_packages() == bootstrap.VENV / "lib" / version / "site-packages"


def test_the_cdktf_command_is_the_version_of_the_contract() -> None:
    package = json.loads((ROOT / "requirements/node/package.json").read_text())
    assert package["devDependencies"]["cdktf-cli"] == CDKTF_CLI_VERSION


@pytest.mark.parametrize("pins", sorted((ROOT / "tests/tools").glob("*/go.mod")), ids=lambda p: p.parent.name)
def test_every_go_tool_is_pinned_by_hash(pins: Path) -> None:
    assert (pins.parent / "go.sum").stat().st_size > 0


def test_what_is_installed_is_compared_with_its_hash() -> None:
    (sync,) = [
        call
        for call in calls([*ast.walk(ast.parse((ROOT / ".ci/bootstrap.py").read_text()))])
        if {"pip", "sync"} <= {getattr(word, "value", None) for word in call.args}
    ]
    assert "--require-hashes" in {getattr(word, "value", None) for word in sync.args}


def calls(found: list[ast.AST]) -> list[ast.Call]:
    return [node for node in found if isinstance(node, ast.Call)]


# What is looked for below has one of these in its name, and most sources have none: to take one apart costs a hundred
# times as much as to search it.
CANDIDATE = re.compile("pickle|marshal|shelve|dill|shell|weights|remote_code|safetensors")
PICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
ONLY_WITH: dict[str, tuple[bool, str]] = {
    "shell": (False, "shell strings"),
    "weights_only": (True, "weights_only=False runs code"),
    "trust_remote_code": (False, "remote code"),
    "use_safetensors": (True, "weights may be a pickle"),
}


def runs_data(source: str) -> list[tuple[int, str]]:
    """Line and danger of each place in `source` that could run code from data."""
    if not CANDIDATE.search(source):
        return []
    found = [*ast.walk(ast.parse(source))]
    wrong: list[tuple[int, str]] = []
    for node in found:
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        wrong += [(node.lineno, name) for name in names if name in PICKLES]
        given = [(word.arg, word.value) for word in node.keywords] if isinstance(node, ast.Call) else []
        # Options may also come as a mapping that a call spreads out.
        if isinstance(node, ast.Dict):
            pairs = [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
            given = [pair for pair in pairs if pair[0] == "trust_remote_code"]
        for name, value in given:
            only, danger = ONLY_WITH.get(str(name), (None, ""))
            if only is not None and getattr(value, "value", None) is not only:
                wrong.append((value.lineno, danger))
    return wrong


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "import os, marshal",
        "run(x, shell=True)",
        "run(x, shell=given)",
        "load(x, weights_only=False)",
        "load(x, trust_remote_code=1)",
        "load(x, **{'trust_remote_code': True})",
        "load(x, use_safetensors=None)",
    ],
)
def test_each_way_to_run_code_from_data_is_found(source: str) -> None:
    assert [line for line, _ in runs_data(f"'\\n'\n{source}")] == [2]


def test_what_a_source_may_say_is_not_found() -> None:
    allowed = "run(x, shell=False)", "load(x, weights_only=True)", "load(x, **{'trust_remote_code': False})", "weights"
    assert not any(runs_data(source) for source in allowed)


def test_no_source_of_ours_can_run_code_from_data() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {danger}" for path in SOURCES for line, danger in runs_data(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", ["--help", "--nonsense"])
def test_the_system_packages_are_not_installed_by_a_word_it_does_not_know(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    script = importlib.import_module("system_packages")
    monkeypatch.setattr(sys, "argv", ["system_packages.py", word])
    monkeypatch.setattr(script.shutil, "which", lambda name: pytest.fail(f"it went on to {name}"))
    with pytest.raises(SystemExit):
        script.main()
