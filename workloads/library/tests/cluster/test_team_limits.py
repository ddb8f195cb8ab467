"""A member of a team tries what would reach other teams, on the real API server, under the member's
own name.
"""

from collections.abc import Callable, Iterator

import pytest
from kubernetes import config

from holdfast.clients.api import Api, ApiError, Object
from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.capacity import ANNOTATION_QUEUED_AGAIN
from holdfast.vocabulary.kubernetes import (
    JOBSET_API,
    LABEL_QUEUE,
    PRIORITY_FLEX,
    PRIORITY_PLATFORM,
    PRIORITY_SERVING,
)
from holdfast.vocabulary.pools import GPU_RESOURCE
from infra import describe
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.waiting import until
from tests.cluster.test_teams import render_teams
from tests.infra.samples import two_teams

SPACE = "vision"
OTHER = "speech"
KINDS = (
    "Namespace",
    "ServiceAccount",
    "ResourceQuota",
    "LimitRange",
    "NetworkPolicy",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{SPACE}/jobsets"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SPACE}/deployments"
SERVICES = f"/api/v1/namespaces/{SPACE}/services"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"
DRY = {"dryRun": "All"}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
PEERS = {"podSelector": {"matchLabels": {"holdfast.dev/gang": "mine"}}}
CALLERS: Object = {"from": [{"namespaceSelector": {}}]}


def template(*, gpus: int = 0, priority: str | None = PRIORITY_FLEX, **spec: object) -> Object:
    limits = {"cpu": "1", "memory": "1Gi"} | ({GPU_RESOURCE: str(gpus)} if gpus else {})
    container: Object = {
        "name": "main",
        "image": "registry.k8s.io/pause",
        "resources": {"limits": limits},
    }
    container["securityContext"] = RESTRICTED
    pod = {
        "containers": [container],
        "restartPolicy": "Never",
    } | ({"priorityClassName": priority} if priority else {})
    return {
        "metadata": {"labels": {"app": "mine"}},
        "spec": pod | spec,
    }


def job(name: str = "mine", queue: str = "spot", **pod: object) -> Object:
    about: Object = {
        "name": name,
        "labels": {LABEL_QUEUE: queue} if queue else {},
    }
    return {
        "metadata": about,
        "spec": {
            "suspend": True,
            "template": template(**pod),
        },
    }  # type: ignore[arg-type]


def deployment(**pod: object) -> Object:
    spec = {
        "selector": {"matchLabels": {"app": "mine"}},
        "template": template(restartPolicy="Always", **pod),
    }  # type: ignore[arg-type]
    return {
        "metadata": {
            "name": "mine",
            "labels": {LABEL_QUEUE: "spot"},
        },
        "spec": {"replicas": 0, **spec},
    }


def service(**spec: object) -> Object:
    return {
        "metadata": {"name": "mine"},
        "spec": {
            "selector": {"app": "mine"},
            "ports": [{"port": 80}],
        }
        | spec,
    }


def network_policy(**rules: object) -> Object:
    types = [kind.capitalize() for kind in rules]
    return {
        "metadata": {"name": "mine"},
        "spec": {"podSelector": {}, "policyTypes": types} | rules,
    }


@pytest.fixture
def member(api: Api, cluster: OwnManager) -> Iterator[Api]:
    """The API server as a person of the team vision sees it, once the team's rights and limits are
    in force.
    """
    bodies = render_teams(two_teams().teams, *KINDS)
    assert {body["kind"] for body in bodies} == {*KINDS}
    for body in bodies:
        api.apply(api.path_of(body), body)
    client = config.new_client_from_config(str(cluster.kubeconfig))
    client.set_default_header("Impersonate-User", "ana@example.org")
    client.set_default_header("Impersonate-Group", "vision@example.org")
    person = Api.over(client)
    until(
        "rights are in force",
        lambda: refusal(lambda: person.create(SERVICES, service(), **DRY)) == "",
    )
    for refused in (job(priority=PRIORITY_PLATFORM), job(queue="", gpus=8)):
        until(
            "limits are in force",
            lambda refused=refused: refusal(lambda: person.create(JOBS, refused, **DRY)),
        )
    for path, body in (
        (SERVICES, service(type="NodePort")),
        (POLICIES, network_policy(ingress=[{}])),
    ):
        until(
            "limits are in force",
            lambda p=path, b=body: refusal(lambda: person.create(p, b, **DRY)),
        )
    until(
        "limits are in force",
        lambda: refusal(lambda: person.delete(f"{POLICIES}/default-deny", **DRY)),
    )
    yield person


def refusal(attempt: Callable[[], object]) -> str:
    """Returns the answer of the API server that refuses, or an empty text."""
    try:
        attempt()
    except ApiError as error:
        assert error.status in (403, 422), error
        return str(error)
    return ""


REFUSED = {
    "the platform's priority": (JOBS, job(priority=PRIORITY_PLATFORM), "priority"),
    "the servers' priority": (JOBS, job(priority=PRIORITY_SERVING), "priority"),
    "a system priority": (JOBS, job(priority="system-cluster-critical"), "priority"),
    "a Deployment of the platform's priority": (
        DEPLOYMENTS,
        deployment(priority=PRIORITY_PLATFORM),
        "priority",
    ),
    "8 GPUs without a queue": (JOBS, job(queue="", gpus=8), "needs a queue"),
    "GPUs of an init container without a queue": (
        JOBS,
        job(
            queue="", initContainers=[template(gpus=1)["spec"]["containers"][0] | {"name": "first"}]
        ),
        "needs a queue",
    ),
    "GPUs of a Deployment": (DEPLOYMENTS, deployment(gpus=1), "past the team's queues"),
    "a load balancer": (SERVICES, service(type="LoadBalancer"), "inside the cluster"),
    "a port of every node": (SERVICES, service(type="NodePort"), "inside the cluster"),
    "another address": (SERVICES, service(externalIPs=["203.0.113.7"]), "inside the cluster"),
    "a name outside": (
        SERVICES,
        service(type="ExternalName", externalName="example.org"),
        "inside the cluster",
    ),
    "traffic from everywhere": (
        POLICIES,
        network_policy(ingress=[{}]),
        "opens pods of its namespace",
    ),
    "traffic to everywhere": (POLICIES, network_policy(egress=[{}]), "opens pods of its namespace"),
    "traffic to any address": (
        POLICIES,
        network_policy(egress=[{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]),
        "opens pods of its namespace",
    ),
    "traffic from another namespace": (
        POLICIES,
        network_policy(ingress=[{"from": [PEERS | {"namespaceSelector": {}}]}]),
        "opens pods of its namespace",
    ),
    "traffic from other namespaces to any port": (
        POLICIES,
        network_policy(ingress=[CALLERS]),
        "opens pods of its namespace",
    ),
    "traffic from other namespaces to the port of a shell": (
        POLICIES,
        network_policy(ingress=[CALLERS | {"ports": [{"port": 8080}, {"port": 22}]}]),
        "opens pods of its namespace",
    ),
    "traffic from other namespaces to a range of ports": (
        POLICIES,
        network_policy(ingress=[CALLERS | {"ports": [{"port": 8080, "endPort": 9999}]}]),
        "opens pods of its namespace",
    ),
    "traffic to the services of other namespaces": (
        POLICIES,
        network_policy(egress=[{"to": CALLERS["from"], "ports": [{"port": 8080}]}]),
        "opens pods of its namespace",
    ),
    "one open rule of two": (
        POLICIES,
        network_policy(ingress=[{"from": [PEERS]}, {"ports": [{"port": 80}]}]),
        "opens pods of its namespace",
    ),
}


def test_a_member_cannot_reach_beyond_the_team(member: Api) -> None:
    for title, (path, body, reason) in REFUSED.items():
        assert reason in refusal(lambda path=path, body=body: member.create(path, body, **DRY)), (
            title
        )


def test_a_member_submits_suspends_and_deletes_team_jobs(member: Api) -> None:
    allowed = [
        (DEPLOYMENTS, deployment()),
        (SERVICES, service(clusterIP="None")),
        (POLICIES, network_policy(ingress=[{"from": [PEERS]}], egress=[{"to": [PEERS]}])),
        (JOBS, job("no-gpu", queue="", priority=None)),
        (JOBS, job("kept", gpus=8)),
    ]
    for path, body in allowed:
        name = member.create(path, body)["metadata"]["name"]
        assert (
            refusal(
                lambda path=path, name=name: member.merge(
                    f"{path}/{name}", {"metadata": {"labels": {"a": "b"}}}
                )
            )
            == ""
        )
    member.merge(f"{JOBS}/no-gpu", {"spec": {"suspend": False}})
    assert member.merge(f"{JOBS}/no-gpu", {"spec": {"suspend": True}})["spec"]["suspend"]
    for path, body in allowed:
        member.delete(f"{path}/{body['metadata']['name']}", propagationPolicy="Background")


def test_a_member_has_no_rights_in_another_team(member: Api) -> None:
    jobs = JOBS.replace(SPACE, OTHER)
    attempts: list[Callable[[], object]] = [
        lambda: member.create(jobs, job(), **DRY),
        lambda: member.get(jobs),
        lambda: member.delete(f"{jobs}/any"),
        lambda: member.merge(f"{jobs}/any", {"spec": {"suspend": True}}),
        lambda: member.get(f"/api/v1/namespaces/{SPACE}/secrets"),
        lambda: member.create(
            f"/api/v1/namespaces/{SPACE}/pods", template() | {"metadata": {"name": "mine"}}
        ),
        lambda: member.create(
            f"/api/v1/namespaces/{SPACE}/serviceaccounts", {"metadata": {"name": "mine"}}
        ),
        lambda: member.delete(f"/api/v1/namespaces/{SPACE}/resourcequotas/ceiling"),
    ]
    for number, attempt in enumerate(attempts):
        assert "cannot" in refusal(attempt), number


def test_platform_network_policies_stay(member: Api, api: Api) -> None:
    path = f"{POLICIES}/default-deny"
    opened = {"spec": {"policyTypes": ["Egress"]}}
    for attempt in (
        lambda: member.delete(path),
        lambda: member.merge(path, opened),
        lambda: member.merge(path, {"metadata": {"labels": {"holdfast.dev/half": None}}}),
    ):
        assert "belong to the platform team" in refusal(attempt)
    # The platform team and what it applies are exempt.
    assert refusal(lambda: api.merge(path, {"metadata": {"annotations": {"a": "b"}}})) == ""
    assert refusal(lambda: api.delete(path, **DRY)) == ""
    assert refusal(lambda: api.create(SERVICES, service(type="LoadBalancer"), **DRY)) == ""


def test_a_job_that_is_older_than_the_limits_can_be_suspended_and_deleted(
    member: Api, api: Api
) -> None:
    older = job("older", queue="", gpus=1, priority=PRIORITY_PLATFORM)
    api.create(
        JOBS,
        older
        | {
            "metadata": {
                "name": "older",
                "finalizers": ["example.org/held"],
            }
        },
    )
    path = f"{JOBS}/older"
    try:
        assert "needs a queue" in refusal(
            lambda: member.create(JOBS, job("newer", queue="", gpus=1), **DRY)
        ), "what is new is refused"
        api.merge(path, {"spec": {"suspend": False}})
        member.merge(path, {"spec": {"suspend": True}})
        assert refusal(lambda: member.merge(path, {"spec": {"suspend": False}})), "it would start"
        member.delete(path, propagationPolicy="Foreground")
        assert member.get(path)["metadata"]["deletionTimestamp"]
    finally:
        api.merge(path, {"metadata": {"finalizers": None}})
    until("it is gone", lambda: api.find(path) is None)


def test_a_job_with_gpus_stays_with_its_queue(member: Api) -> None:
    member.create(JOBS, job("queued", gpus=8))
    path = f"{JOBS}/queued"
    try:
        assert "started by its queue" in refusal(
            lambda: member.merge(path, {"spec": {"suspend": False}})
        )
        bare = {"metadata": {"labels": {LABEL_QUEUE: None}}}
        assert "needs a queue" in refusal(lambda: member.merge(path, bare))
    finally:
        member.delete(path, propagationPolicy="Background")


def test_a_quota_stops_reserved_priority_pods_from_any_creator(member: Api, api: Api) -> None:
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    pod = template(priority=PRIORITY_SERVING) | {"metadata": {"name": "mine"}}
    quota = f"/api/v1/namespaces/{SPACE}/resourcequotas/reserved-priorities"
    until("the quota is counted", lambda: api.get(quota).get("status", {}).get("hard"))
    assert "reserved-priorities" in refusal(lambda: api.create(pods, pod, **DRY))
    allowed = template() | {"metadata": {"name": "mine"}}
    assert refusal(lambda: api.create(pods, allowed, **DRY)) == ""


@pytest.mark.usefixtures("jobset")
def test_the_limits_hold_for_jobsets(member: Api) -> None:
    def jobset(queue: str, **pod: object) -> Object:
        group = {
            "name": "workers",
            "template": {"spec": {"template": template(**pod)}},
        }  # type: ignore[arg-type]
        labels = {LABEL_QUEUE: queue} if queue else {}
        about = {
            "apiVersion": JOBSET_API,
            "kind": "JobSet",
            "metadata": {"name": "gang", "labels": labels},
        }
        return about | {
            "spec": {
                "suspend": True,
                "replicatedJobs": [group],
            }
        }

    for body, reason in (
        (jobset("", gpus=8), "needs a queue"),
        (jobset("spot", priority=PRIORITY_SERVING), "priority"),
    ):
        assert reason in refusal(lambda body=body: member.create(JOBSETS, body, **DRY))
    member.create(JOBSETS, jobset("spot", gpus=8))
    assert member.merge(f"{JOBSETS}/gang", {"spec": {"suspend": True}})["spec"]["suspend"]
    member.delete(f"{JOBSETS}/gang", propagationPolicy="Background")


@pytest.mark.usefixtures("kueue")
def test_a_member_stops_a_queued_job_and_cannot_raise_its_priority(member: Api, api: Api) -> None:
    workloads = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{SPACE}/workloads"
    member.create(JOBS, job("waiting", gpus=1))
    try:

        def names() -> list[str]:
            items = [item["metadata"] for item in member.items(workloads)]
            names: list[str] = []
            for about in items:
                if about["ownerReferences"][0]["name"] == "waiting":
                    names.append(about["name"])
            return names

        (name,) = until("it has a Workload", names)
        path = f"{workloads}/{name}"
        for change in (
            {"spec": {"priority": 10_000}},
            {"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "1000"}}},
        ):
            assert "spec.active" in refusal(lambda change=change: member.merge(path, change))
        marks = {ANNOTATION_QUEUED_AGAIN: "2027-01-31T12:00:00Z", "example.com/other": "1"}
        api.merge(path, {"metadata": {"annotations": marks}})
        for name in ("example.com/other", "example.com/new"):
            change = {"metadata": {"annotations": {name: None if name in marks else "1"}}}
            assert "spec.active" in refusal(lambda change=change: member.merge(path, change))
        stop = {
            "metadata": {"annotations": {ANNOTATION_QUEUED_AGAIN: None}},
            "spec": {"active": False},
        }
        assert member.merge(path, stop)["spec"]["active"] is False
        assert "cannot" in refusal(lambda: member.delete(path))
    finally:
        member.delete(f"{JOBS}/waiting", propagationPolicy="Background")


SHAPES: dict[str, Object] = {
    "on CPUs": {},
    "on one GPU": {"gpus": "1xl4"},
    "a gang": {"gpus": "1xl4", "nodes": 2},
    "an elastic gang": {"gpus": "1xl4", "nodes": "2..4"},
    "a batch": {
        "gpus": "1xl4",
        "predictor": "gpt",
        "data": "gs://acme-items/today",
        "command": (),
    },
}


@pytest.mark.usefixtures("kueue")
def test_what_submit_sends_is_within_the_limits(member: Api) -> None:
    platform = describe.platform(two_teams(), {})
    for shape, fields in SHAPES.items():
        values: Object = {
            "name": "mine",
            "environment": "example",
            "image": IMAGE,
            "command": ("python", "train.py"),
        }
        values |= {"namespace": SPACE} | fields
        job = JobSpec(**values)
        for body in manifests.bodies(
            job, RenderContext(platform), placement.place(job, platform, prices.load())
        ):
            path = member.path_of(body)
            assert refusal(lambda path=path, body=body: member.apply(path, body, **DRY)) == "", (
                shape,
                body["kind"],
            )
