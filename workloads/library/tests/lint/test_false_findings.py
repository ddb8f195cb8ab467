"""Tests that correct manifests, as other projects write them, raise no finding."""

import pytest

from holdfast.lint.engine import Options, lint_texts
from workloads.library.tests.lint.defects import find_rules

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {template: {spec: {containers: [{name: main, image: train}]}}}
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec:
  replicatedJobs:
  - name: workers
    template: {spec: {template: {spec: {containers: [{name: main, image: train}]}}}}
"""
LEADER_WORKER_SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      metadata: {labels: {role: leader}}
      spec: {containers: [{name: main, image: vllm}]}
    workerTemplate: {spec: {containers: [{name: main, image: vllm}]}}
"""
STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, image: db}]}
"""


def service(selector: str) -> str:
    head = "---\napiVersion: v1\nkind: Service\nmetadata: {name: peers}\n"
    return f"{head}spec: {{selector: {{{selector}}}, ports: [{{port: 80}}]}}\n"


@pytest.mark.parametrize(
    ("workload", "selector", "is_found"),
    [
        (JOB, "job-name: train", False),
        (JOB, "batch.kubernetes.io/job-name: train", False),
        (JOB, "batch.kubernetes.io/controller-uid: a", False),
        (JOBSET, "jobset.sigs.k8s.io/jobset-name: train", False),
        (JOBSET, "jobset.sigs.k8s.io/replicatedjob-name: workers", False),
        (JOBSET, "jobset.sigs.k8s.io/job-index: '0'", False),
        (LEADER_WORKER_SET, "leaderworkerset.sigs.k8s.io/name: vllm, role: leader", False),
        (LEADER_WORKER_SET, "any.example/label: a", False),
        (STATEFUL_SET, "statefulset.kubernetes.io/pod-name: db-0", False),
        (JOB, "job-name: trian", True),
        (JOB, "app: train", True),
        (JOBSET, "jobset.sigs.k8s.io/jobset-name: trian", True),
        (STATEFUL_SET, "app: db2", True),
        (STATEFUL_SET, "statefulset.kubernetes.io/pod-name: db-0, app: db2", True),
    ],
)
def test_selectors_may_name_controller_labels(workload: str, selector: str, is_found: bool) -> None:
    assert ("HF148" in find_rules(workload + service(selector))) is is_found


def local_queue(name: str, namespace: str) -> str:
    place = f", namespace: {namespace}" if namespace else ""
    head = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\n"
    return f"{head}metadata: {{name: {name}{place}}}\nspec: {{clusterQueue: all}}\n---\n"


@pytest.mark.parametrize(
    ("queues", "namespace", "is_found"),
    [
        ((("users", "default"),), "", False),
        ((("users", ""),), "default", False),
        ((("users", "default"), ("others", "")), "", False),
        # `kubectl apply --namespace team` creates it there.
        ((("users", "team"), ("others", "default")), "", False),
        ((("others", "default"),), "", True),
        ((("others", ""),), "default", True),
        ((("users", "default"),), "team", True),
    ],
)
def test_objects_without_a_namespace_are_in_default(
    queues: tuple[tuple[str, str], ...], namespace: str, is_found: bool
) -> None:
    place = f", namespace: {namespace}" if namespace else ""
    job = JOB.replace(
        "{name: train}", f"{{name: train{place}, labels: {{kueue.x-k8s.io/queue-name: users}}}}", 1
    )
    text = "".join(local_queue(*queue) for queue in queues)
    assert ("HF306" in find_rules(text + job)) is is_found


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}, annotations: {gke-gcsfuse/volumes: "true"}}
    spec:
      containers:
      - name: main
        image: server
        args: [--checkpoint-path, /weights/checkpoints]
        volumeMounts: [{name: weights, mountPath: /weights}]
        PROBE
      volumes: [{name: weights, VOLUME}]
"""
READY = "readinessProbe: {httpGet: {path: /health, port: 8080}}"
BUCKET = "csi: {driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {bucketName: b}}"
READ_ONLY_CLAIM = """\
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: weights}
spec: {csi: {driver: gcsfuse.csi.storage.gke.io, volumeHandle: b}, accessModes: [ReadOnlyMany]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: weights}
spec: {volumeName: weights, accessModes: [ReadOnlyMany]}
"""


@pytest.mark.parametrize("volume", [BUCKET, "emptyDir: {}", "hostPath: {path: /var/weights}"])
@pytest.mark.parametrize("kind", ["probed", "behind a Service", "neither"])
def test_servers_read_weights(volume: str, kind: str) -> None:
    text = DEPLOYMENT.replace("VOLUME", volume)
    text = text.replace("PROBE", READY if kind == "probed" else "tty: false")
    if kind == "behind a Service":
        text += service("app: server")
    rules = find_rules(text) & {"HF201", "HF202"}
    assert bool(rules) is (kind == "neither")


@pytest.mark.parametrize(
    ("mount", "volume", "more", "is_found"),
    [
        ("readOnly: true", "emptyDir: {}", "", False),
        ("readOnly: true", BUCKET, "", False),
        ("readOnly: false", BUCKET.replace("{driver", "{readOnly: true, driver"), "", False),
        ("readOnly: false", "persistentVolumeClaim: {claimName: weights}", READ_ONLY_CLAIM, False),
        (
            "readOnly: false",
            "persistentVolumeClaim: {claimName: weights, readOnly: true}",
            READ_ONLY_CLAIM.replace("ReadOnlyMany", "ReadWriteMany"),
            False,
        ),
        ("readOnly: false", BUCKET, "", True),
        ("readOnly: false", "emptyDir: {}", "", True),
        (
            "readOnly: false",
            "persistentVolumeClaim: {claimName: weights}",
            READ_ONLY_CLAIM.replace("ReadOnlyMany", "ReadWriteMany"),
            True,
        ),
    ],
)
def test_nothing_is_written_to_a_read_only_mount(
    mount: str, volume: str, more: str, is_found: bool
) -> None:
    text = DEPLOYMENT.replace("VOLUME", volume).replace("PROBE", "tty: false") + more
    text = text.replace("mountPath: /weights", f"mountPath: /weights, {mount}")
    assert bool(find_rules(text) & {"HF201", "HF202"}) is is_found


def test_labels_that_no_pool_has_together_are_all_named() -> None:
    selector = "holdfast.dev/pool-class: spot-l4, holdfast.dev/role: system"
    spec = f"{{nodeSelector: {{{selector}}}, containers: [{{name: main, image: a}}]}}"
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n"
    findings = lint_texts({"a.yaml": text}, Options()).active
    (message,) = [finding.message for finding in findings if finding.rule == "HF003"]
    assert message == (
        "holdfast.dev/pool-class=spot-l4 and holdfast.dev/role=system match no pool together"
    )
