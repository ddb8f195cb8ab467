"""Programs of somebody else's as they are started in a pod: real torchrun, a real shell, real
signals.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.jobs.file.job_file import JobSpec
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.cluster.sim.processes import free_ports
from tests.cluster.sim.waiting import until
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import get_pod_spec, read_variables, render

pytestmark = pytest.mark.process
TORCHRUN = Path(sys.executable).with_name("torchrun")
DEAF = """\
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).touch()
while True:
    time.sleep(0.02)  # Python sees a signal that comes just before a system call only after it
"""


RANK = """\
import os, pathlib, sys
(pathlib.Path(sys.argv[1]) / os.environ["RANK"]).write_text(os.environ["WORLD_SIZE"])
"""


def get_command(job: JobSpec, **replaced: str) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of the pod; `replaced` has what only a cluster sets."""
    (container,) = get_pod_spec(render(job))["containers"]
    env = {"PATH": os.environ["PATH"]} | read_variables(container) | replaced
    return container["command"], env


def test_torchrun_without_options_joins_all_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    job = own(
        gpus="1xa100",
        nodes=2,
        capacity="spot",
        processes=2,
        command=(str(TORCHRUN), str(script), str(tmp_path)),
    )
    (port,) = map(str, free_ports(1))
    nodes: list[subprocess.Popen[bytes]] = []
    for rank in ("0", "1"):
        head = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
        command, env = get_command(job, **head, PET_NODE_RANK=rank, NODE_RANK=rank)
        nodes.append(subprocess.Popen(command, env=env))
    assert [node.wait(timeout=240) for node in nodes] == [0, 0]
    for rank in "0123":
        assert (tmp_path / rank).read_text() == "4", rank


def test_a_program_that_ends_well_on_a_notice_is_not_taken_for_complete(tmp_path: Path) -> None:
    """The program exits with 0 without the wrapper, which a Job counts as done; wrapped, it exits
    as a stopped program, or with its own code.
    """
    ready = tmp_path / "ready"
    codes: dict[str, int] = {}
    for on_notice in ("handles", "wrap"):
        command, env = get_command(
            own(on_notice=on_notice, command=(sys.executable, "-c", DEAF, str(ready)))
        )
        with subprocess.Popen(command, env=env) as program:
            until("it runs", ready.exists)
            program.send_signal(signal.SIGTERM)
            codes[on_notice] = program.wait(timeout=60)
        ready.unlink()
    assert codes == {"handles": 0, "wrap": EXIT_PREEMPTED}
    for code in (0, 3):
        command, env = get_command(
            own(on_notice="wrap", command=(sys.executable, "-c", f"raise SystemExit({code})"))
        )
        assert subprocess.run(command, env=env, check=False).returncode == code
