"""Pods and Jobs of the node tier: real processes, host network, the image that is already there."""

from typing import Any

from holdfast.clients.api import Object
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim.world import POLICY
from workloads.library.tests.node.lab.config import IMAGE

STOPS_IN_ORDER = (
    f"trap 'echo notified; exit {EXIT_PREEMPTED}' TERM; echo up; while true; do sleep 0.1; done"
)
DEAF = "trap '' TERM; echo up; while true; do sleep 0.1; done"


def slow_to_stop(seconds: int) -> str:
    """Returns a script that runs this long after the signal, like a save that is under way."""
    return (
        f"trap 'sleep {seconds}; echo saved; exit {EXIT_PREEMPTED}' TERM; echo up; while true; do"
        " sleep 0.1; done"
    )


def shell(pool: Pool, script: str, **spec: Any) -> Object:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
    return {
        "metadata": {"labels": {"app": "node-tier"}},
        "spec": (
            {
                "restartPolicy": "Never",
                "hostNetwork": True,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "nodeSelector": pool.selector(),
                "tolerations": pool.tolerations(),
                "terminationGracePeriodSeconds": 30,
                "containers": [container],
            }
            | spec
        ),
    }


def job(template: Object, *, policy: bool = True, **spec: Any) -> Object:
    """An indexed Job of one pod, as the platform renders it."""
    policies = {"backoffLimitPerIndex": 0, "podFailurePolicy": POLICY} if policy else {}
    return (
        {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "template": template,
        }
        | policies
        | spec
    )
