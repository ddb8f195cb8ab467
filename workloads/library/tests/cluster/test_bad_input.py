"""Machines and wishes that the tier refuses: each with its reason, and with nothing touched."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_kubernetes.providers.external import ExternalManagerBase

from holdfast.contract.errors import InputError
from tests import support
from tests.cluster.sim import kind
from tests.cluster.sim.control_plane import NEEDED, missing_tools
from tests.cluster.sim.kind import KindManager
from tests.cluster.sim.manager import foreign
from tests.cluster.sim.processes import alive, owner
from tests.cluster.sim.waiting import until
from tests.tools import build

ROOT = Path(__file__).parents[4]
DEAD = 2**22 + 1  # above the kernel's largest process id


def programs(folder: Path, **scripts: str) -> str:
    """A PATH that holds these and nothing else."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("ci", [True, False])
def test_without_the_tools_a_laptop_skips_and_ci_fails(
    ci: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CACHE", tmp_path)
    assert missing_tools() == list(NEEDED)
    monkeypatch.setenv("CI", "true" if ci else "")
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="has not built etcd"):
        support.require(not missing_tools(), f"`make tools` has not built {', '.join(missing_tools())}")


def test_without_go_the_build_names_the_version_it_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(
        SystemExit, match=r"no Go for etcd\n  got:     none\n  allowed: .* or newer\n  fix:     make setup"
    ):
        build.find_go(build.TOOLS["etcd"])


def test_the_kind_tier_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "BUSYBOX", tmp_path / "busybox")
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    assert kind.missing() == "docker and kind not on PATH"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", kind="", docker="echo cannot connect >&2; exit 1"))
    assert "is not static" in kind.missing()
    kind.BUSYBOX.write_bytes(Path(sys.executable).resolve().read_bytes())
    assert "is not static" in kind.missing()
    kind.BUSYBOX.write_bytes(b"\x7fELF, without a loader")
    assert kind.missing() == "no Docker engine answers: cannot connect"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", docker="exit 0"))
    assert kind.missing() == ""
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert kind.missing().startswith("DOCKER_HOST=tcp://elsewhere:2375 is no engine of this host")


def test_an_old_node_image_is_refused_before_a_cluster_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = tmp_path / "called"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", kind=f": > {called}"))
    monkeypatch.setenv(kind.IMAGE_VARIABLE, "kindest/node:v1.25.3@sha256:0000")
    with pytest.raises(InputError, match="too old"):
        KindManager().create()
    assert not called.exists()


@pytest.mark.parametrize("image", [kind.DEFAULT_IMAGE, "kindest/node:v1.40.0@sha256:1", "registry:5000/node"])
def test_an_image_that_may_fit_is_tried(image: str) -> None:
    kind.check_image(image)


def test_only_clusters_of_dead_test_runs_of_this_host_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    mine, start = owner().split("x")
    reused = f"{kind.prefix()}{mine}x{int(start, 16) ^ 1:02x}"
    orphans = [f"{kind.prefix()}{DEAD}x00", reused]
    names = ["kind", "holdfast-tests", f"holdfast-tests-00000000-{DEAD}x00", f"{kind.prefix()}{owner()}", *orphans]
    script = f'echo "$@" >> {log}; [ "$1" = get ] && echo "{" ".join(names)}" && exit 0; [ "$1" = delete ]'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", kind=script))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv(kind.IMAGE_VARIABLE, raising=False)
    made = KindManager()
    with pytest.raises(Exception, match="kind create cluster"):
        made.create()
    deleted = [line.split()[3] for line in log.read_text().splitlines() if line.startswith("delete")]
    assert deleted == [*orphans, made.name], "the orphans, and what this run began itself"
    assert made.kubeconfig is None
    log.unlink()
    made.delete()
    assert not log.exists(), "a second delete touches nothing"


def test_a_kubeconfig_of_somebody_else_is_neither_read_nor_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "config"
    foreign.write_text("somebody else's")
    monkeypatch.setenv("KUBECONFIG", str(foreign))
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", kind=f'echo "$@" >> {log}; [ "$1" != create ]'))
    monkeypatch.delenv(kind.IMAGE_VARIABLE, raising=False)
    with pytest.raises(Exception, match="kind create cluster"):
        KindManager().create()
    changing = [line for line in log.read_text().splitlines() if not line.startswith("get")]
    assert len(changing) == 2
    assert all("--kubeconfig /" in line and str(foreign) not in line for line in changing)
    assert foreign.read_text() == "somebody else's"


def test_a_cluster_that_is_not_named_for_tests_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "config"
    theirs.write_text("current-context: production\n")
    with pytest.raises(InputError, match="a cluster that people use"):
        foreign(ExternalManagerBase, theirs)


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_an_interrupted_run_leaves_no_process(blow: signal.Signals, tmp_path: Path) -> None:
    support.require(not missing_tools(), "`make tools` has not built the control plane")
    victim = "workloads/library/tests/cluster/test_storms.py::test_a_spot_job_survives_repeated_storms_without_a_charged_failure"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--basetemp={tmp_path / 'inner'}", victim]
    # It is no worker of the run that holds this test.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    with subprocess.Popen(command, cwd=ROOT, env=own | {"TMPDIR": str(tmp_path)}) as run:
        until("the cluster has come up", lambda: len(mentioning(tmp_path) - {run.pid}) >= len(NEEDED) - 1)
        pids = mentioning(tmp_path) - {run.pid}
        run.send_signal(blow)
        until("every component is gone", lambda: not any(alive(pid) for pid in pids))
    if blow is signal.SIGINT:
        assert not list(tmp_path.glob("holdfast-cluster-*")), "pytest had the time to tidy up"


def mentioning(folder: Path) -> set[int]:
    """Processes with a file of `folder` on their command line."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in path.read_bytes():
                found.add(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
