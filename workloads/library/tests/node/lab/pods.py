"""Pods and Jobs of the node tier: real processes, host network, the image that is already there."""

import sys
from pathlib import Path
from typing import Any

from holdfast.clients.api import Object
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.pools import Pool
from tests.cluster.sim.runnable import HOST_FOLDERS, ROOT
from tests.cluster.sim.world import POLICY
from workloads.library.tests.node.lab.config import IMAGE

STOPS_IN_ORDER = f"trap 'echo notified; exit {EXIT_PREEMPTED}' TERM; echo up; while true; do sleep 0.1; done"
DEAF = "trap '' TERM; echo up; while true; do sleep 0.1; done"


def slow_to_stop(seconds: int) -> str:
    """Needs so long after the signal, as a save that was under way does."""
    return f"trap 'sleep {seconds}; echo saved; exit {EXIT_PREEMPTED}' TERM; echo up; while true; do sleep 0.1; done"


def template(pool: Pool, command: list[str], mounts: tuple[Path, ...] = (), **spec: Any) -> Object:
    container: Object = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command}
    container["volumeMounts"] = [
        {"name": f"v{i}", "mountPath": str(path), "readOnly": path in HOST_FOLDERS} for i, path in enumerate(mounts)
    ]
    return {
        "metadata": {"labels": {"app": "node-tier"}},
        "spec": {
            "restartPolicy": "Never",
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": pool.selector(),
            "tolerations": pool.tolerations(),
            "terminationGracePeriodSeconds": 30,
            "containers": [container],
            "volumes": [{"name": f"v{i}", "hostPath": {"path": str(path)}} for i, path in enumerate(mounts)],
        }
        | spec,
    }


def shell(pool: Pool, script: str, **spec: Any) -> Object:
    return template(pool, ["/bin/sh", "-c", script], **spec)


def python(pool: Pool, arguments: list[str], scratch: Path, **spec: Any) -> Object:
    """`python ARGUMENTS` of this checkout, in the repository's root; `scratch` is writable."""
    mounts = tuple(dict.fromkeys(path for path in (*HOST_FOLDERS, scratch) if path.is_dir()))
    made = template(pool, [sys.executable, *arguments], mounts, **spec)
    (container,) = made["spec"]["containers"]
    container["workingDir"] = str(ROOT)
    container["env"] = [
        {"name": "HOME", "value": str(scratch)},
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
    ]
    return made


def job(template_: Object, *, policy: bool = True, **spec: Any) -> Object:
    """An indexed Job of one pod, as the platform renders it."""
    ours = {"backoffLimitPerIndex": 0, "podFailurePolicy": POLICY} if policy else {}
    return {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template_} | ours | spec
