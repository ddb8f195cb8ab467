"""`explain` of jobs whose pods the real scheduler does not place, or the real API server does not
make: each cause is made.
"""

from typing import Any, NamedTuple

from holdfast.clients.api import Object
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_POOL_CLASS, LABEL_ZONE, SPOT_TAINT, Pool
from tests.cluster.sim import jobsets
from tests.cluster.sim.explained import ask, one_pod
from tests.cluster.sim.stages import WAITING
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load

POOL = next(pool for pool in load("example").pools if pool.name.startswith("spot-l4"))
ELSEWHERE = {
    "matchExpressions": [
        {
            "key": "disk",
            "operator": "In",
            "values": ["nvme"],
        }
    ]
}
APART = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ELSEWHERE]}
    }
}
HUNGRY = {
    "containers": [
        {
            "name": "main",
            "image": "none",
            "resources": {"limits": {GPU_RESOURCE: "1", "memory": "9Ti"}},
        }
    ]
}
TYPO = {"nodeSelector": {LABEL_POOL_CLASS: "spot-l5"}}
CLAIMS = {"unbound": "", "classless": "fast"}  # name -> storage class


def of_claim(name: str) -> Object:
    return {
        "volumes": [
            {
                "name": "data",
                "persistentVolumeClaim": {"claimName": name},
            }
        ]
    }


class Case(NamedTuple):
    """Explains a job of one pod in a cluster of two nodes."""

    reason: str
    blocker: str
    evidence: str = "kubectl "
    spec: Object = {}  # noqa: RUF012
    annotations: dict[str, str] | None = None
    scaling: tuple[str, ...] = ()
    """Reason and message of an event as GKE's autoscaler writes it; there is none here."""


CASES = {
    "naive": Case(
        "taint",
        f"pods have no node: 2 nodes have the taint {SPOT_TAINT}",
        spec={"tolerations": POOL.tolerations()[1:]},
    ),
    "typo": Case("selector", "no node matches holdfast.dev/pool-class=spot-l5", spec=TYPO),
    "picky": Case("selector", "didn't match Pod's node affinity", spec={"affinity": APART}),
    "flexible": Case(
        "flex-queue", "", spec={"nodeSelector": {"cloud.google.com/gke-flex-start": "true"}}
    ),
    "gated": Case(
        "gate",
        "held by the gate example.com/quota",
        spec={"schedulingGates": [{"name": "example.com/quota"}]},
    ),
    "imageless": Case(
        "image", "ImagePullBackOff: none on ", annotations={WAITING: "ImagePullBackOff"}
    ),
    "hungry": Case("capacity", "Insufficient memory", spec=HUNGRY),
    "reader": Case(
        "volume", "claim missing does not exist in ", "kubectl get pvc", of_claim("missing")
    ),
    "unbound": Case(
        "volume",
        "claim unbound is Pending, 100Gi of no storage class: no persistent volumes",
        "kubectl describe pvc",
        of_claim("unbound"),
    ),
    "classless": Case(
        "volume",
        'storageclass.storage.k8s.io "fast" not found',
        "kubectl describe pvc",
        of_claim("classless"),
    ),
    "accountless": Case(
        "refused",
        "service account trainer does not exist",
        "kubectl get serviceaccounts",
        {"serviceAccountName": "trainer"},
    ),
    "classed": Case(
        "refused",
        "PriorityClass urgent does not exist",
        "kubectl get priorityclasses",
        {"priorityClassName": "urgent"},
    ),
    "contained": Case(
        "refused",
        "RuntimeClass gvisor does not exist",
        "kubectl get runtimeclasses",
        {"runtimeClassName": "gvisor"},
    ),
    "sold-out": Case(
        "stock-out",
        "GCE out of resources",
        spec=HUNGRY,
        scaling=(
            "FailedScaleUp",
            (
                "Node scale up in zones europe-west4-a associated with this pod failed: GCE out of"
                " resources. Pod is at risk of not being scheduled."
            ),
        ),
    ),
    "sold-out-by-code": Case(
        "stock-out",
        "GCE_STOCKOUT",
        spec=HUNGRY,
        scaling=(
            "FailedScaleUp",
            "Node scale up in zones a associated with this pod failed: GCE_STOCKOUT",
        ),
    ),
    "backed-off": Case(
        "stock-out",
        "1 in backoff",
        spec=HUNGRY,
        scaling=(
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 in backoff after failed scale-up",
        ),
    ),
    "limited": Case(
        "quota",
        "GCE quota exceeded",
        spec=HUNGRY,
        scaling=(
            "FailedScaleUp",
            (
                "Node scale up in zones europe-west4-a associated with this pod failed: GCE quota"
                " exceeded. Pod is at risk of not being scheduled."
            ),
        ),
    ),
    "limited-by-code": Case(
        "quota",
        "GCE_QUOTA_EXCEEDED",
        spec=HUNGRY,
        scaling=("FailedScaleUp", "Node scale up failed: GCE_QUOTA_EXCEEDED"),
    ),
    "grown": Case(
        "pool-limit",
        "3 max node group size reached",
        spec=HUNGRY,
        scaling=(
            "NotTriggerScaleUp",
            (
                "pod didn't trigger scale-up: 12 node(s) didn't match Pod's node affinity/selector,"
                " 3 max node group size reached"
            ),
        ),
    ),
    "nowhere": Case(
        "selector",
        "",
        spec=TYPO,
        scaling=(
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector",
        ),
    ),
    "growing": Case(
        "scale-up",
        "instanceGroups/gke-spot-l4 0->1 (max: 4)",
        spec=HUNGRY,
        scaling=(
            "TriggeredScaleUp",
            (
                "pod triggered scale-up: [{https://www.googleapis.com/x/instanceGroups/gke-spot-l4"
                " 0->1 (max: 4)}]"
            ),
        ),
    ),
}


def claim(world: World, name: str, **spec: Any) -> None:
    asked = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "100Gi"}},
    }
    world.api.create(
        world.path("persistentvolumeclaims"),
        {
            "metadata": {"name": name},
            "spec": asked | spec,
        },
    )


def require_explained(world: World, job: str, wanted: Case) -> None:
    until(
        f"{job}: {wanted.blocker}",
        lambda: wanted.blocker in ask(world, job, wanted.reason).cause.blocker,
    )
    assert ask(world, job, wanted.reason).cause.evidence.startswith(wanted.evidence), job


def test_what_keeps_a_pod_from_its_node_is_named_with_its_evidence(world: World) -> None:
    world.add_nodes(POOL, 2)
    for name, storage_class in CLAIMS.items():
        claim(world, name, storageClassName=storage_class)
    for job, case in CASES.items():
        world.create_job(job, one_pod(world, POOL, case.annotations, **case.spec))
    for job, case in CASES.items():
        if case.scaling:
            mine = {"labelSelector": f"batch.kubernetes.io/job-name={job}"}
            (pod,) = until("its pod is there", lambda mine=mine: world.pods(**mine))
            world.add_event(pod, *case.scaling)
    for job, case in CASES.items():
        require_explained(world, job, case)
    assert "no ETA" in ask(world, "flexible", "flex-queue").similar
    assert "preemption" not in ask(world, "hungry", "capacity").cause.blocker


def test_a_full_pool_is_explained_with_its_free_gpus(world: World) -> None:
    world.add_nodes(POOL, 2)
    world.create_job("wide", world.job_spec(POOL, 3))
    world.wait_running(2)
    explanation = ask(world, "wide", "capacity")
    assert explanation.cause.blocker.endswith(
        "each wants 1 nvidia.com/gpu, the fitting nodes have 0 of 2 free"
    )
    assert explanation.state.startswith("Waiting: 2 of 3 pods run")


def test_a_disk_in_another_zone_is_named(world: World) -> None:
    world.add_nodes(POOL, 1)
    zone = {
        "matchExpressions": [
            {
                "key": LABEL_ZONE,
                "operator": "In",
                "values": ["elsewhere-a"],
            }
        ]
    }
    spec = {
        "capacity": {"storage": "100Gi"},
        "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": {"required": {"nodeSelectorTerms": [zone]}},
        "claimRef": {"namespace": world.name, "name": "corpus"},
        "hostPath": {"path": "/none"},
    }
    world.api.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": world.name},
            "spec": spec,
        },
    )
    try:
        claim(
            world,
            "corpus",
            storageClassName="",
            volumeName=world.name,
        )
        path = f"{world.path('persistentvolumeclaims')}/corpus"
        until(
            "the claim is bound",
            lambda: world.api.get(path).get("status", {}).get("phase") == "Bound",
        )
        world.create_job("reader", one_pod(world, POOL, **of_claim("corpus")))
        cause = ask(world, "reader", "volume").cause
        assert "1 node(s) didn't match PersistentVolume's node affinity" in cause.blocker
        assert "a disk serves one zone" in cause.action
    finally:
        world.api.delete(f"/api/v1/persistentvolumes/{world.name}")


# Pods that the API server refuses to make: there is no pod to look at.

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}


def test_a_namespace_quota_is_explained_in_numbers(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 3)
    key = f"requests.{GPU_RESOURCE}"
    world.api.create(
        world.path("resourcequotas"),
        {
            "metadata": {"name": "team"},
            "spec": {"hard": {key: "2"}},
        },
    )
    path = f"{world.path('resourcequotas')}/team"
    until("the quota is counted", lambda: world.api.get(path).get("status", {}).get("hard"))
    world.create_job("wide", world.job_spec(spot, 3))
    world.wait_running(2)
    numbers = (
        f"1 of 3 pods are refused: ResourceQuota team: asks for {key}=1; {key}=2 in use, {key}=2"
        " allowed"
    )
    require_explained(
        world,
        "wide",
        Case("quota", numbers, f"kubectl describe resourcequota -n {world.name} team"),
    )
    world.api.delete(path)
    ask(world, "wide", "none")


def test_pod_security_is_named_with_its_level_also_in_a_jobset(world: World, jobset: None) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    world.api.merge(f"/api/v1/namespaces/{world.name}", {"metadata": {"labels": labels}})
    world.create_job("root", one_pod(world, POOL))
    world.api.create(
        world.path("jobsets", jobsets.GROUP), jobsets.jobset("gang", one_pod(world, POOL))
    )
    for job in ("root", "gang"):
        require_explained(
            world,
            job,
            Case("refused", "Pod Security restricted:latest: allowPrivilegeEscalation != false"),
        )


def test_a_webhook_that_does_not_answer_and_a_policy_that_denies_are_named(world: World) -> None:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": world.name}}
    hook = {
        "name": "dead.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/pods"},
        "namespaceSelector": selector,
        "rules": [PODS],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 2,
    }
    rule = {
        "expression": "object.spec.containers.all(c, c.image.contains('@'))",
        "message": "images by digest only",
    }
    policy = {
        "matchConstraints": {"resourceRules": [PODS]},
        "validations": [rule],
    }
    bound = {
        "policyName": world.name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    require_refusal(
        world,
        "webhook dead.example.com does not answer: ",
        {"validatingwebhookconfigurations": {"webhooks": [hook]}},
    )
    denying = {
        "validatingadmissionpolicies": {"spec": policy},
        "validatingadmissionpolicybindings": {"spec": bound},
    }
    require_refusal(world, f"policy {world.name}: images by digest only", denying)


def require_refusal(world: World, blocker: str, objects: dict[str, Object]) -> None:
    """Creates cluster-wide objects, by plural, and checks that `explain` names the blocker."""
    for plural, body in objects.items():
        world.api.create(f"{ADMISSION}/{plural}", {"metadata": {"name": world.name}} | body)
    try:
        until("it is in force", lambda: world.try_pod("probe", world.pod_template(POOL)))
        job = f"refused-{len(objects)}"
        world.create_job(job, one_pod(world, POOL))
        require_explained(world, job, Case("refused", blocker))
    finally:
        for plural in objects:
            world.api.delete(f"{ADMISSION}/{plural}/{world.name}")
