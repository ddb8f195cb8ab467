"""The admission policies and the linter give one verdict, over all examples of the rules, on the
real API server.
"""

import json
import uuid
from collections.abc import Iterator
from copy import deepcopy

import pytest
from kubernetes.client.exceptions import ApiException

from holdfast.clients.api import Api, ApiError, Object
from holdfast.lint import admission
from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.examples import build_objects, parse
from holdfast.lint.registry import all_rules
from holdfast.manifests.render_context import yaml_text
from holdfast.vocabulary.kubernetes import (
    JOB_API,
    JOBSET_API,
    LABEL_GANG,
    LABEL_PART_OF,
    NAMESPACE_KUEUE,
    PART_OF,
)
from tests.cluster.sim.waiting import until
from tests.platforms import load
from tests.support import ROOT
from workloads.library.tests.cluster.objects import list_names
from workloads.library.tests.jobs.test_manifests import own
from workloads.library.tests.jobs.test_manifests import render as made

KINDS = ("Job", "JobSet")
LABELS = ("holdfast.dev/pool-class", "cloud.google.com/gke-spot")

PROBE: Object = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "probe"},
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "a"}],
            }
        }
    },
}
REFUSED = "for pods of the Job of that name alone"
LABELED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "labeled",
        "labels": {LABEL_GANG: "victim"},
    },
    "spec": PROBE["spec"]["template"]["spec"],
}
pytestmark = pytest.mark.timeout(300)


def list_rules() -> list[str]:
    (policy, *_) = admission.build_policies(load("example"))
    return [validation["message"][:5] for validation in policy["spec"]["validations"]]


def examples() -> list[tuple[str, Object]]:
    """Every Job and JobSet of every rule's two examples."""
    cases: list[tuple[str, Object]] = []
    for rule in all_rules().values():
        for name, text in (("bad", rule.bad), ("good", rule.good)):
            for body in (
                build_objects(rule.base, text) if rule.check and (text or rule.base) else []
            ):
                if isinstance(body, dict) and body.get("kind") in KINDS:
                    cases.append((f"{rule.id} {name}", body))
    return cases


def variants() -> Iterator[tuple[str, Object]]:
    """Yields each example as it is, without one of the labels that mean Spot, and without all.

    Equal objects come once: an example that has no such label equals its variants.
    """
    texts = set[str]()
    for name, body in list_variants():
        text = json.dumps(body, sort_keys=True)
        if text not in texts:
            texts.add(text)
            yield name, body


def list_variants() -> Iterator[tuple[str, Object]]:
    for name, body in examples():
        yield name, body
        for key in LABELS:
            yield f"{name} without {key}", without_labels(body, key)
        yield f"{name} without labels", without_labels(body, *LABELS)


def without_labels(body: Object, *keys: str) -> Object:
    copy = deepcopy(body)
    jobs = [copy["spec"]]
    if copy["kind"] == "JobSet":
        jobs = []
        for job in copy["spec"].get("replicatedJobs", []):
            jobs.append(job["template"]["spec"])
    for job in jobs:
        selector = job.get("template", {}).get("spec", {}).get("nodeSelector") or {}
        for key in keys:
            selector.pop(key, None)
    return copy


@pytest.fixture
def space(jobset: None, api: Api) -> Iterator[str]:
    """A namespace of the platform."""
    policies = list(admission.build_policies(load("example")))
    for body in policies:
        api.apply(api.path_of(body), body)
    name = f"admitted-{uuid.uuid4().hex[:6]}"
    api.create(
        "/api/v1/namespaces",
        {
            "metadata": {
                "name": name,
                "labels": {LABEL_PART_OF: PART_OF},
            }
        },
    )
    until("the linter's policies are in force", lambda: find_by_server(api, name, PROBE))
    until("that of gangs is in force", lambda: REFUSED in find_refusal(api, name, LABELED))
    yield name
    allow(api, name)
    for body in policies:
        api.delete(api.path_of(body))
    # Otherwise the next test mistakes these policies for its own.
    until("the linter's policies are gone", lambda: not find_by_server(api, name, PROBE))
    until("that of gangs is gone", lambda: REFUSED not in find_refusal(api, name, LABELED))
    api.delete(f"/api/v1/namespaces/{name}")


def find_by_server(api: Api, space: str, body: Object, *, user: str = "") -> set[str]:
    """Returns the rules of the policies that find something: the server warns with each. It must
    accept the object otherwise. `user` asks, and may do everything.
    """
    body = body | {"metadata": body["metadata"] | {"namespace": space}}
    path = api.path_of(body).rpartition("/")[0]
    request = api.client.param_serialize(
        "POST",
        path,
        query_params=[("dryRun", "All")],
        header_params={"Content-Type": "application/json"} | impersonate(user),
        body=body,
        auth_settings=["BearerToken"],
    )
    response = api.client.call_api(*request)
    if response.status >= 400:
        raise ApiException(response.status)
    warnings = " ".join(response.getheaders().getlist("Warning"))
    return {rule for rule in list_rules() if f"{rule}-" in warnings}


def impersonate(user: str) -> dict[str, str]:
    return {"Impersonate-User": user, "Impersonate-Group": "system:masters"} if user else {}


def find_refusal(api: Api, space: str, body: Object) -> str:
    """Returns why the server refuses the object; empty if it accepts."""
    body = body | {"metadata": body["metadata"] | {"namespace": space}}
    try:
        api.create(api.path_of(body).rpartition("/")[0], body, dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


def find_by_linter(body: Object) -> set[str]:
    report = lint_texts({"a.yaml": yaml_text([body])}, Options(platforms=[load("example")]))
    return {finding.rule for finding in report.active} & set(list_rules())


def test_server_and_linter_find_the_same_in_every_example(api: Api, space: str) -> None:
    rules: set[str] = set()
    names: set[str] = set()
    differences: list[tuple[str, set[str], set[str]]] = []
    invalid: list[str] = []
    for name, body in variants():
        try:
            by_server = find_by_server(api, space, body)
        except ApiException:
            invalid.append(name)
            continue
        by_linter = find_by_linter(body)
        if by_server != by_linter:
            differences.append((name, by_server, by_linter))
        names.add(name)
        rules |= by_server
    assert not differences
    assert rules == set(list_rules()), "each rule finds"
    assert len(names) >= 100, f"invalid on their own: {invalid}"


def test_a_label_makes_the_namespace_refuse_what_is_a_warning_elsewhere(
    api: Api, space: str
) -> None:
    assert find_by_server(api, space, PROBE)
    assert not find_refusal(api, space, PROBE)
    deny(api, space)


def deny(api: Api, space: str) -> None:
    """Lets the namespace refuse what it warned of, and waits until it does."""
    change = {"metadata": {"labels": {admission.LABEL_ADMISSION: admission.DENY}}}
    api.merge(f"/api/v1/namespaces/{space}", change)
    until("it refuses", lambda: "HF118-job-without-deadline" in find_refusal(api, space, PROBE))


def allow(api: Api, space: str) -> None:
    """Lets the namespace warn only, and waits until it does."""
    change = {"metadata": {"labels": {admission.LABEL_ADMISSION: None}}}
    api.merge(f"/api/v1/namespaces/{space}", change)
    until("it accepts", lambda: not find_refusal(api, space, PROBE))


def test_what_is_older_than_deny_mode_can_be_changed_and_deleted(api: Api, space: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
    metadata = {"name": "older", "namespace": space, "finalizers": ["example.com/held"]}
    api.create(jobs, PROBE | {"metadata": metadata})
    deny(api, space)
    for change in (
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False}},
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"activeDeadlineSeconds": 60}},
    ):
        api.merge(f"{jobs}/older", change)
    api.delete(f"{jobs}/older", propagationPolicy="Foreground")
    assert api.get(f"{jobs}/older")["metadata"]["deletionTimestamp"]
    # A change that is refused otherwise is allowed while the object is being deleted.
    api.merge(f"{jobs}/older", {"spec": {"activeDeadlineSeconds": None}})
    finalizer = "/metadata/finalizers/0"
    operations = [
        {"op": "test", "path": finalizer, "value": "example.com/held"},
        {"op": "remove", "path": finalizer},
    ]
    api.patch(f"{jobs}/older", operations)
    until("it is gone", lambda: not api.get(jobs)["items"])


def test_jobsets_that_are_older_than_deny_mode_can_be_changed(api: Api, space: str) -> None:
    deny(api, space)
    (body,) = build_objects("jobset", "spec: {ttlSecondsAfterFinished: null}")
    body["metadata"]["namespace"] = space
    path = api.path_of(body)
    assert "HF119" in find_refusal(api, space, body)
    allow(api, space)
    api.create(path.rpartition("/")[0], body)
    deny(api, space)
    api.merge(path, {"spec": {"suspend": True}})
    api.merge(path, {"metadata": {"labels": {"a": "b"}}})
    api.delete(path, propagationPolicy="Foreground")


def test_kueue_may_start_a_job_on_any_flavor(api: Api, space: str) -> None:
    """It adds the selector of a flavor to a suspended Job that was judged without one."""
    jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
    limits = {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 60, "suspend": True}
    api.create(
        jobs,
        PROBE
        | {"metadata": {"name": "queued", "namespace": space}}
        | {"spec": PROBE["spec"] | limits},
    )
    deny(api, space)
    selector = {"cloud.google.com/gke-spot": "true"}
    start = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
    with pytest.raises(ApiError, match="HF004"):
        api.merge(f"{jobs}/queued", start)
    assert merge_as(api, f"system:serviceaccount:{NAMESPACE_KUEUE}:a", f"{jobs}/queued", start)
    assert api.get(f"{jobs}/queued")["spec"]["template"]["spec"]["nodeSelector"] == selector


def merge_as(api: Api, user: str, path: str, change: Object) -> bool:
    """Changes an object as a user with all RBAC rights. Returns whether the policies allow it."""
    headers = {"Content-Type": "application/merge-patch+json"} | impersonate(user)
    request = api.client.param_serialize(
        "PATCH", path, header_params=headers, body=change, auth_settings=["BearerToken"]
    )
    response = api.client.call_api(*request)
    response.read()
    return response.status == 200


def make_owner(kind: str, api_version: str, *, uid: str = "none") -> Object:
    owner = {
        "apiVersion": api_version,
        "kind": kind,
        "name": "owner",
        "uid": uid,
    }
    return owner | {"controller": True}


@pytest.fixture
def owner(api: Api, space: str) -> None:
    """Creates the JobSet of `make_owner`, which Kueue reads if another test has installed Kueue."""
    job = {
        "name": "a",
        "template": {"spec": PROBE["spec"]},
    }
    body = {
        "apiVersion": JOBSET_API,
        "kind": "JobSet",
        "metadata": {"name": "owner", "namespace": space},
        "spec": {"suspend": True, "replicatedJobs": [job]},
    }
    api.apply(api.path_of(body), body)


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("kind", "api_version", "user", "is_exempt"),
    [
        ("JobSet", JOBSET_API, "", False),
        ("CronJob", JOB_API, "", False),
        ("JobSet", JOBSET_API, "system:serviceaccount:training:any", False),
        ("JobSet", JOBSET_API, "system:serviceaccount:kube-system:cronjob-controller", False),
        ("ConfigMap", "v1", "system:serviceaccount:jobset-system:any", False),
        ("JobSet", "example.com/v1", "system:serviceaccount:jobset-system:any", False),
        ("JobSet", JOBSET_API, "system:serviceaccount:jobset-system:any", True),
        ("CronJob", JOB_API, "system:serviceaccount:kube-system:cronjob-controller", True),
    ],
)
def test_an_owner_exempts_a_job_only_if_its_controller_asks(
    api: Api, space: str, kind: str, api_version: str, user: str, is_exempt: bool
) -> None:
    body = PROBE | {
        "metadata": {
            "name": "owned",
            "ownerReferences": [make_owner(kind, api_version)],
        }
    }
    rules = find_by_server(api, space, body, user=user)
    assert rules == (set() if is_exempt else {"HF118", "HF119"})


def test_jobset_makes_its_jobs_where_the_namespace_refuses(api: Api, space: str) -> None:
    """Its Jobs break rules of Jobs: they end with the JobSet and count no evictions themselves."""
    deny(api, space)
    (body,) = build_objects("jobset", "")
    body["metadata"]["namespace"] = space
    api.create(api.path_of(body).rpartition("/")[0], body)
    until("it has its Job", lambda: api.get(f"/apis/batch/v1/namespaces/{space}/jobs")["items"])


def test_an_update_may_not_add_a_mistake(api: Api, space: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
    limits = {"ttlSecondsAfterFinished": 60}
    job = PROBE | {"metadata": {"name": "older", "namespace": space}}
    api.create(jobs, job | {"spec": PROBE["spec"] | limits})
    deny(api, space)
    with pytest.raises(ApiError, match="HF119") as error:
        api.merge(f"{jobs}/older", {"spec": {"ttlSecondsAfterFinished": None}})
    assert "HF118" not in str(error.value)


@pytest.mark.parametrize("name", ["victim", "victim-0a1b2c3d", "other"])
def test_gang_ports_are_open_only_to_pods_with_the_gang_name(
    api: Api, space: str, name: str
) -> None:
    template = {
        **PROBE["spec"]["template"],
        "metadata": {"labels": {LABEL_GANG: "victim"}},
    }
    job = PROBE | {
        "metadata": {"name": name, "namespace": space},
        "spec": {"template": template},
    }
    jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
    pods = f"/api/v1/namespaces/{space}/pods"
    uid = api.create(jobs, job)["metadata"]["uid"]
    if name == "other":
        until(
            "its pod is refused",
            lambda: REFUSED in str(api.get(f"/api/v1/namespaces/{space}/events")),
        )
        assert not api.get(pods)["items"]
        return
    until("the controller makes its pod", lambda: api.get(pods)["items"])
    (its,) = list_names(api.get(pods)["items"])
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": template["spec"],
    }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": uid,
        "controller": True,
    }
    forged = {
        "name": "a",
        "labels": {LABEL_GANG: "victim"},
        "ownerReferences": [owner],
    }
    assert REFUSED in find_refusal(api, space, pod | {"metadata": forged})
    assert not find_refusal(api, space, pod)
    api.create(pods, pod)
    labels = {"metadata": {"labels": {LABEL_GANG: "victim"}}}
    for path in (f"{pods}/a", f"{pods}/a/status"):
        with pytest.raises(ApiError, match=REFUSED):
            api.merge(path, labels)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "target": {"kind": "Node", "name": "n"},
    }
    binding["metadata"] = {"name": "a"} | labels["metadata"]
    for path in (f"{pods}/a/binding", f"/api/v1/namespaces/{space}/bindings"):
        with pytest.raises(ApiError, match=REFUSED):
            api.create(path, binding, dryRun="All")
    api.merge(f"{pods}/{its}", {"metadata": {"labels": {"other": "label"}}})


def test_an_annotation_accepts_a_finding(api: Api, space: str) -> None:
    (body,) = build_objects(
        "job", "spec: {ttlSecondsAfterFinished: null, activeDeadlineSeconds: null}"
    )
    assert find_by_server(api, space, body) == {"HF118", "HF119"}
    accepted = {"holdfast.dev/ignore-HF119": "it is asked for later"}
    body["metadata"]["annotations"] = accepted
    assert find_by_server(api, space, body) == find_by_linter(body) == {"HF118"}
    body["metadata"]["annotations"] = {"holdfast.dev/ignore-HF119": " "}
    assert find_by_server(api, space, body) == {"HF118", "HF119"}
    body["metadata"]["annotations"] = {}
    body["spec"]["template"]["metadata"] = {"annotations": accepted}
    assert find_by_server(api, space, body) == find_by_linter(body) == {"HF118"}


def test_a_stated_default_grace_period_counts_as_unstated(api: Api, space: str) -> None:
    (body,) = build_objects("job-pod", "terminationGracePeriodSeconds: 30")
    assert find_by_linter(body) == {"HF101"}
    assert find_by_server(api, space, body) == {"HF102"}
    body["metadata"]["annotations"] = {"holdfast.dev/ignore-HF101": "it ends sooner"}
    assert find_by_linter(body) == find_by_server(api, space, body) == set()


def test_platform_jobs_pass(api: Api, space: str) -> None:
    """They accept findings by annotation, as the Job of the database does."""
    count = 0
    for file in (ROOT / "workloads/rendered/example/platform").glob("*.yaml"):
        for body in parse(file.read_text()):
            if body and body["kind"] in KINDS:
                count += 1
                assert find_by_server(api, space, body) == set(), file
    assert count


def test_the_last_job_in_a_large_jobset_is_judged(api: Api, space: str) -> None:
    (body,) = build_objects("jobset", "")
    (job,) = body["spec"]["replicatedJobs"]
    jobs = []
    for index in range(20):
        jobs.append(deepcopy(job) | {"name": f"workers-{index}"})
    body["spec"]["replicatedJobs"] = jobs
    assert find_by_server(api, space, body) == set()
    pod = jobs[-1]["template"]["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 25
    assert find_by_server(api, space, body) == {"HF101"}
    del pod["terminationGracePeriodSeconds"]
    assert find_by_server(api, space, body) == {"HF102"}


def test_jobs_as_the_platform_writes_them_pass(api: Api, space: str) -> None:
    for job in (
        own(gpus="1xl4", nodes=1),
        own(gpus="1xl4", nodes=2),
        own(gpus="1xl4", nodes="2..4"),
        own(gpus="none"),
    ):
        (body,) = (document for document in made(job) if document["kind"] in KINDS)
        assert find_by_server(api, space, body) == set(), job
