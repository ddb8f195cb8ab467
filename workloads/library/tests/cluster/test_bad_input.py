"""Machines and wishes that the tier refuses: each with its reason, and with nothing touched."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import support
from tests.cluster.sim import kind
from tests.cluster.sim.control_plane import NEEDED, missing_tools
from tests.cluster.sim.kind import KindManager
from tests.cluster.sim.processes import owner
from tests.tools import build

DEAD = 2**22 + 1  # above the kernel's largest process id


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes scripts, and a PATH that holds nothing else."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))

    def add(**scripts: str) -> None:
        for name, script in scripts.items():
            support.program(folder / name, f"#!/bin/sh\n{script}\n")

    return add


@pytest.mark.parametrize("ci", [True, False])
def test_without_the_tools_a_laptop_skips_and_ci_fails(
    ci: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CACHE", tmp_path)
    assert missing_tools() == list(NEEDED)
    monkeypatch.setenv("CI", "true" if ci else "")
    with pytest.raises(
        pytest.fail.Exception if ci else pytest.skip.Exception, match="has not built etcd"
    ):
        support.require(
            not missing_tools(), f"`make tools` has not built {', '.join(missing_tools())}"
        )


@pytest.mark.usefixtures("programs")
def test_without_go_the_build_names_the_version_it_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(
        SystemExit,
        match=r"no Go for etcd\n  got:     none\n  allowed: .* or newer\n  fix: +make setup",
    ):
        build.find_go(build.TOOLS["etcd"])


def test_the_kind_tier_names_what_is_missing(
    tmp_path: Path, programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "BUSYBOX", tmp_path / "busybox")
    assert kind.missing() == "docker and kind not on PATH"
    programs(kind="", docker="echo cannot connect >&2; exit 1")
    assert "is not static" in kind.missing()
    kind.BUSYBOX.write_bytes(Path(sys.executable).resolve().read_bytes())
    assert "is not static" in kind.missing()
    kind.BUSYBOX.write_bytes(b"\x7fELF, without a loader")
    assert kind.missing() == "no Docker engine answers: cannot connect"
    programs(docker="exit 0")
    assert kind.missing() == ""
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert kind.missing().startswith("DOCKER_HOST=tcp://elsewhere:2375 is no engine of this host")


def test_only_clusters_from_dead_test_runs_are_removed(
    tmp_path: Path, programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    config = tmp_path / "config"
    owner_id, start = owner().split("x")
    prefix = kind.prefix()
    other_start = int(start, 16) ^ 1
    orphans = [f"{prefix}{DEAD}x00", f"{prefix}{owner_id}x{other_start:02x}"]
    names = [
        "kind",
        "holdfast-tests",
        f"holdfast-tests-00000000-{DEAD}x00",
        f"{kind.prefix()}{owner()}",
        *orphans,
    ]
    programs(
        kind=(
            f'echo "$@" >> {log}; [ "$1" = get ] && echo "{" ".join(names)}" && exit 0; [ "$1" ='
            " delete ]"
        )
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config.write_text("somebody else's")
    monkeypatch.setenv("KUBECONFIG", str(config))
    manager = KindManager()
    with pytest.raises(Exception, match="kind create cluster"):
        manager.create()
    commands = log.read_text().splitlines()
    deleted = []
    for line in commands:
        if line.startswith("delete"):
            deleted.append(line.split()[3])
        if not line.startswith("get"):
            assert "--kubeconfig /" in line
            assert str(config) not in line
    assert deleted == [*orphans, manager.name], "the orphans, and what this run began itself"
    assert config.read_text() == "somebody else's"
