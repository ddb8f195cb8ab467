"""`python -m workloads.library.tests.node.record`: what a real kubelet writes about pods that
cannot run, for the tests of `explain`.

As root. Each case is a Job of one pod; its pod and events go into
workloads/library/tests/jobs/recorded/kubelet.json, without what differs from run to run and is
never read.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.clients.api import Object
from holdfast.vocabulary.pools import Pool
from tests import platforms
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.node.lab import pods
from workloads.library.tests.node.lab.config import IMAGE
from workloads.library.tests.node.lab.lab import Lab

TARGET = Path(__file__).parents[1] / "jobs/recorded/kubelet.json"
FAT = "a=0123456789abcdef; while true; do a=$a$a; done"
FULL = "while true; do echo 0123456789abcdef0123456789abcdef >> /scratch/full; done"
FAILED = '"phase": "Failed"'


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pod with one thing wrong."""

    texts: tuple[str, ...]
    """Texts that the kubelet writes into the pod or its events once it has decided."""
    main: Object = field(default_factory=dict)
    spec: Object = field(default_factory=dict)


def mount_volume(path: str, volume: Object) -> dict[str, Object]:
    mounts = [{"name": "data", "mountPath": path}]
    return {
        "main": {"volumeMounts": mounts},
        "spec": {"volumes": [{"name": "data"} | volume]},
    }


BUCKET = {
    "driver": "gcsfuse.csi.storage.gke.io",
    "volumeAttributes": {"bucketName": "no-such-bucket"},
}
FETCH = {
    "name": "fetch",
    "image": IMAGE,
    "imagePullPolicy": "Never",
    "command": ["/bin/sh", "-c", "echo denied; exit 3"],
    "terminationMessagePolicy": "FallbackToLogsOnError",
}
AGAIN = {"restartPolicy": "OnFailure"}
CASES = {
    "image": Case(
        texts=("ImagePullBackOff",),
        main={"image": "127.0.0.1:1/team/trainer:v7", "imagePullPolicy": "Always"},
    ),
    "configmap": Case(
        texts=("CreateContainerConfigError",),
        main={"envFrom": [{"configMapRef": {"name": "settings"}}]},
    ),
    "secret-volume": Case(
        texts=("FailedMount",), **mount_volume("/key", {"secret": {"secretName": "token"}})
    ),
    "driver": Case(texts=("FailedMount",), **mount_volume("/data", {"csi": BUCKET})),
    "init": Case(texts=(FAILED,), spec={"initContainers": [FETCH]}),
    "init-loop": Case(texts=("CrashLoopBackOff",), spec={"initContainers": [FETCH]} | AGAIN),
    "crash": Case(texts=(FAILED,)),
    "crash-loop": Case(texts=("CrashLoopBackOff",), spec=AGAIN),
    "command": Case(texts=(FAILED,), main={"command": ["/bin/pyhton"]}),
    "memory": Case(
        texts=(FAILED, "OOMKilled"),
        main={
            "command": ["/bin/sh", "-c", FAT],
            "resources": {"limits": {"memory": "32Mi"}},
        },
    ),
    "disk": Case(
        texts=(FAILED, "Evicted"),
        main=mount_volume("/scratch", {})["main"] | {"command": ["/bin/sh", "-c", FULL]},
        spec=mount_volume("/scratch", {"emptyDir": {"sizeLimit": "1Mi"}})["spec"],
    ),
    # Bypasses the scheduler, which would not have let it through.
    "device": Case(
        texts=(FAILED, "OutOfcpu"),
        main={"resources": {"limits": {"cpu": "1000"}}},
        spec={"nodeName": "spot-a"},
    ),
}


def template(case: Case, pool: Pool) -> Object:
    job = pods.shell(pool, "echo no data in /data >&2; exit 70", **case.spec)
    job["spec"]["containers"][0] |= {
        "terminationMessagePolicy": "FallbackToLogsOnError"
    } | case.main
    return job


# Fields that `explain` may read, by the name of the object. A Job's template has the same
# containers as its pods.
_CONTAINER = ("name", "image", "resources")
READ = {
    "metadata": ("name", "namespace", "uid", "creationTimestamp", "ownerReferences"),
    "spec": (
        "parallelism",
        "completions",
        "backoffLimitPerIndex",
        "nodeName",
        "volumes",
        "template",
        "containers",
        "initContainers",
    ),
    "template": ("spec",),
    "containers": _CONTAINER,
    "initContainers": _CONTAINER,
}


def slim(value: Any, name: str = "") -> Any:
    if isinstance(value, list):
        return [slim(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    kept_fields = {}
    for key, item in value.items():
        if key in READ.get(name, value) and key != "source":
            kept_fields[key] = slim(item, key)
    return kept_fields


def record(world: World, name: str, pool: Pool) -> Object:
    case = CASES[name]
    made = template(case, pool)
    never = made["spec"]["restartPolicy"] == "Never"  # a failure policy asks for it
    world.create_job(name, pods.job(made, policy=never))

    def read_pods_and_events() -> Object:
        candidates = []
        for pod in world.pods():
            if pod["metadata"]["labels"]["job-name"] == name:
                candidates.append(pod)
        uids = {pod["metadata"]["uid"] for pod in candidates}
        events = []
        for e in world.api.items(world.path("events")):
            if e["involvedObject"].get("uid") in uids:
                events.append(e)
        return {
            "pods": [slim(pod) for pod in candidates],
            "events": [slim(event) for event in events],
        }

    def find_complete_record() -> Object | None:
        recorded = read_pods_and_events()
        if all(text in json.dumps(recorded) for text in case.texts):
            return recorded
        return None

    recorded = until(f"the kubelet has made up its mind about {name}", find_complete_record, 180)
    recorded["job"] = slim(world.job(name))
    world.api.delete(
        f"{world.path('jobs', '/apis/batch/v1')}/{name}", propagationPolicy="Background"
    )
    return recorded


def main() -> None:
    pool = platforms.load("example").pool("spot-a100")
    lab = Lab()
    try:
        world = World(lab.api, "train")
        world.create()
        lab.boot("spot-a", pool)
        recorded = {name: record(world, name, pool) for name in CASES}
    finally:
        lab.close()
    lines = []
    for name, case in recorded.items():
        lines.append(f"{json.dumps(name)}: {json.dumps(case, sort_keys=True)}")
    TARGET.write_text("{" + ",\n".join(lines) + "}\n")
    print(TARGET)


if __name__ == "__main__":
    main()
