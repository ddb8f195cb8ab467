"""A JobSet as the platform renders it: a preempted child fails as a whole and is created again,
which counts toward no limit of restarts.
"""

from holdfast.clients.api import Object

GROUP = "/apis/jobset.x-k8s.io/v1alpha2"
# The child must fail at once: the JobSet restarts on a failed Job, not on a failed pod.
PREEMPTED_CHILD = {
    "rules": [
        {
            "action": "FailJob",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
    ]
}


def jobset(name: str, job_spec: Object) -> Object:
    """Returns a JobSet around one indexed Job; it restarts after preemptions only."""
    child = {}
    for key, value in job_spec.items():
        if key != "backoffLimitPerIndex":
            child[key] = value
    rule = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    group = {
        "name": "workers",
        "replicas": 1,
        "template": {"spec": child},
    }
    group["template"]["spec"] |= {"podFailurePolicy": PREEMPTED_CHILD, "backoffLimit": 0}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {
                "maxRestarts": 0,
                "rules": [rule],
            },
            "replicatedJobs": [group],
        },
    }
