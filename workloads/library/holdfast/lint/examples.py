"""Holds the clean objects that rules change in their examples, and merges the two.

The objects fit the environment `example`.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from textwrap import indent
from typing import Any

import yaml

_POD = """\
priorityClassName: spot-workload-low
restartPolicy: Never
serviceAccountName: trainer
terminationGracePeriodSeconds: 15
nodeSelector: {holdfast.dev/pool-class: spot-l4, cloud.google.com/gke-spot: "true"}
tolerations:
- {key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}
- {key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 10}
containers:
- name: main
  image: registry.example/trainer:1.4
  command: [python, -m, trainer]
  resources: {limits: {cpu: "2", memory: 8Gi, ephemeral-storage: 4Gi, nvidia.com/gpu: "1"}}
"""
_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: training}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  backoffLimitPerIndex: 3
  activeDeadlineSeconds: 86400
  ttlSecondsAfterFinished: 86400
  podFailurePolicy:
    rules:
    - {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
    - {action: FailJob, onExitCodes: {operator: In, values: [2, 70]}}
  template: {spec: POD}
"""
_JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: training}
spec:
  failurePolicy:
    maxRestarts: 3
    rules:
    - name: preempted
      action: RestartJobSetAndIgnoreMaxRestarts
      onJobFailureReasons: [PodFailurePolicy]
  ttlSecondsAfterFinished: 86400
  replicatedJobs:
  - name: workers
    replicas: 1
    template:
      spec:
        backoffLimit: 0
        parallelism: 2
        completions: 2
        activeDeadlineSeconds: 86400
        podFailurePolicy:
          rules:
          - {action: FailJob, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
        template: {spec: POD}
"""
_SERVING = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: serving}
spec:
  replicas: 3
  selector: {matchLabels: {app: server}}
  template: {metadata: {labels: {app: server}}, spec: POD}
"""
SILENT = (
    "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute,"
    " tolerationSeconds: 10}"
)
_GPU = "{key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}"
_FLEX = f"""\
priorityClassName: flex-workload
nodeSelector:
  holdfast.dev/pool-class: null
  cloud.google.com/gke-spot: null
  cloud.google.com/gke-flex-start: "true"
  cloud.google.com/gke-accelerator: nvidia-tesla-a100
  cloud.google.com/gke-max-run-duration-seconds: "86400"
  cloud.google.com/gke-gpu-driver-version: latest
tolerations: [{_GPU}, {SILENT}]
"""
_ON_DEMAND = f"""\
priorityClassName: serving
restartPolicy: null
terminationGracePeriodSeconds: 60
nodeSelector: {{holdfast.dev/pool-class: serving, cloud.google.com/gke-spot: null}}
tolerations: [{_GPU}]
"""
_OBJECTS = {
    "job": (_JOB, ""),
    "jobset": (_JOBSET, ""),
    "serving": (_SERVING, _ON_DEMAND),
    "flex": (_JOB, _FLEX),
}
JOB_POD = ("spec", "template", "spec")
JOBSET_JOB = ("spec", "replicatedJobs", 0, "template", "spec")
CONTAINER = ("containers", 0)


@dataclass(frozen=True, slots=True)
class Base:
    """A clean object: an example's text is merged in at `root`, and pages show `title` above it."""

    title: str
    text: str
    root: tuple[str | int, ...]


BASES = {
    "job": Base("in a Job on Spot", "job", ()),
    "job-pod": Base("in the pod of a Job on Spot", "job", JOB_POD),
    "job-template": Base("in the pod template of a Job on Spot", "job", JOB_POD[:-1]),
    "container": Base("in a container of a Job on Spot", "job", (*JOB_POD, *CONTAINER)),
    "flex": Base("in a Job on flex-start", "flex", ()),
    "flex-pod": Base("in the pod of a Job on flex-start", "flex", JOB_POD),
    "jobset": Base("in a JobSet on Spot", "jobset", ()),
    "jobset-job": Base("in a replicated job of a JobSet on Spot", "jobset", JOBSET_JOB),
    "serving": Base("in a Deployment on demand", "serving", ()),
    "serving-container": Base(
        "in a container of a Deployment on demand", "serving", (*JOB_POD, *CONTAINER)
    ),
    "serving-pod": Base("in the pod of a Deployment on demand", "serving", JOB_POD),
    "": Base("whole object", "", ()),
}


def parse(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def build_objects(base: str, change: str) -> list[Any]:
    """Returns the objects of an example: the base with the first document merged in, and the rest.

    An example without a base, or that is a whole object, is returned as it is.
    """
    target = BASES[base]
    if not target.text or change.startswith("apiVersion:"):
        return parse(change)
    body = deepcopy(_load_base(target.text))
    patch, *extra_objects = parse(change) if change else [{}]
    if not target.root:
        return [merge(body, patch), *extra_objects]
    parent = _descend(body, target.root[:-1])
    key = target.root[-1]
    parent[key] = merge(parent[key], patch)
    return [body, *extra_objects]


def write_scaler(fields: str = "", *, min_replicas: int = 2, target: str = "server") -> str:
    """Returns the change of an example on the base `serving`: a document with its autoscaler.

    Args:
        fields: more fields of the autoscaler's spec, not indented.
        target: the Deployment that it names; that of the base is `server`.
    """
    scaler = f"""\
metadata:
  name: server
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: server
  namespace: serving
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {target}
  minReplicas: {min_replicas}
  maxReplicas: 4
"""
    return scaler + indent(fields, "  ")


def _descend(body: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        body = body[step]
    return body


@cache
def _load_base(name: str) -> Any:
    text, change = _OBJECTS[name]
    body = parse(text)[0]
    pod = parse(_POD)[0]
    owner = _descend(body, JOBSET_JOB if name == "jobset" else ("spec",))
    owner["template"]["spec"] = merge(pod, parse(change)[0] if change else {})
    return body


def merge(old: Any, change: Any) -> Any:
    """Merges a change: mappings merge, null removes, all else replaces."""
    if not isinstance(old, dict) or not isinstance(change, dict):
        return deepcopy(change)
    result = deepcopy(old)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(old.get(key), value)
    return result
