"""What a machine shows of its pods: the lines that they printed, and the processes as the kernel
runs them.
"""

import json
from pathlib import Path

from holdfast.clients.api import Api, Object
from holdfast.jobs.diagnose.job_snapshot import disruption, list_container_statuses
from holdfast.vocabulary.environment import ENV_JOB
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.cluster.sim import pods
from tests.cluster.sim.waiting import until
from workloads.library.tests.node.lab.lab import Lab, Machine


def printed(machine: Machine, pod: Object) -> list[str]:
    """Reads whole lines of standard output and error from the node's disk, also after the machine
    has gone.
    """
    meta = pod["metadata"]
    folder = (
        machine.config.path / "logs" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / "main"
    )
    texts: list[str] = []
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text().splitlines():
            if line.count(" ") >= 3:
                texts.append(line.split(" ", 3)[3])
    return texts


def events(machine: Machine, pod: Object, event: str) -> list[Object]:
    parsed = []
    for line in printed(machine, pod):
        if line.startswith("{"):
            parsed.append(json.loads(line))
    return [event_line for event_line in parsed if event_line.get("event") == event]


def wait_until_ended(api: Api, pod: Object, timeout_s: float = 60.0) -> Object:
    """Waits until the pod has ended, and returns it."""

    def terminal() -> Object | None:
        current = api.get(pods.path(pod))
        return current if current["status"]["phase"] in ("Failed", "Succeeded") else None

    return until(f"{pod['metadata']['name']} has ended", terminal, timeout_s)


def preempted(lab: Lab, machine: Machine, pod: Object) -> Object:
    """Preempts the machine of a pod, and returns the pod: it ended by its notice, in the window."""
    assert lab.preempt(machine), "the kubelet gave its lock back within the window"
    current = lab.api.get(pods.path(pod))
    assert disruption(current) == "TerminationByKubelet"
    assert exit_code(current) == EXIT_PREEMPTED
    return current


def exit_code(pod: Object) -> int | None:
    """Returns the first non-zero exit code of its containers."""
    for status in list_container_statuses(pod):
        code = status.get("state", {}).get("terminated", {}).get("exitCode")
        if code:
            return code
    return None


def process(job: str) -> dict[str, object]:
    """Returns how the kernel runs the first process of the pod with this job name."""
    entry = f"{ENV_JOB}={job}".encode()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if command[0] == b"python" and entry in (folder / "environ").read_bytes().split(b"\0"):
                return {"command": [part.decode() for part in command if part]} | _confinement(
                    folder
                )
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    raise LookupError(f"no process of {job} runs")


def _confinement(folder: Path) -> dict[str, object]:
    lines = (folder / "status").read_text().splitlines()
    status = {}
    for key, _, value in (line.partition(":") for line in lines):
        status[key] = value.split()
    mounts = []
    for line in (folder / "mountinfo").read_text().splitlines():
        mounts.append(line.split())
    options = next(mount[5] for mount in mounts if mount[4] == "/")
    return {
        "user": int(status["Uid"][1]),
        "group": int(status["Gid"][1]),
        "seccomp": int(status["Seccomp"][0]),
        "no_new_privileges": status["NoNewPrivs"] == ["1"],
        "capabilities": int(status["CapEff"][0], 16),
        "root_read_only": "ro" in options.split(","),
        "memory_limit": _memory_limit(folder),
    }


def _memory_limit(folder: Path) -> int:
    """Returns the limit in bytes, from cgroup v1 or v2."""
    for line in (folder / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return int(Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes").read_text())
        if not controllers and Path(f"/sys/fs/cgroup{path}/memory.max").exists():
            return int(Path(f"/sys/fs/cgroup{path}/memory.max").read_text())
    raise LookupError("no memory controller")
