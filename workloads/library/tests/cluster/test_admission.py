"""The admission policies and the linter give one verdict, over all examples of the rules, on the
real API server.
"""

import uuid
from collections.abc import Iterator
from itertools import chain

import pytest
from kubernetes.client.exceptions import ApiException

from holdfast.clients.api import Api, ApiError, Object
from holdfast.lint import admission
from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.examples import whole
from holdfast.lint.registry import all_rules
from holdfast.manifests.render_context import yaml_text
from holdfast.vocabulary.kubernetes import LABEL_GANG, LABEL_PART_OF, PART_OF
from tests.cluster.sim.waiting import until
from tests.platforms import load
from workloads.library.tests.jobs.test_manifests import own
from workloads.library.tests.jobs.test_manifests import render as made

KINDS = ("Job", "JobSet")
# The server writes 30 s where no grace period is stated, and then cannot tell one from the other.
SAME = {"HF102": "HF101"}

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
LABELLED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "labelled",
        "labels": {LABEL_GANG: "victim"},
    },
    "spec": PROBE["spec"]["template"]["spec"],
}
pytestmark = pytest.mark.timeout(300)


def judged() -> list[str]:
    (policy, *_) = admission.objects(load("example").pools)
    return [validation["message"][:5] for validation in policy["spec"]["validations"]]


def examples() -> list[tuple[str, Object]]:
    """Every Job and JobSet of every rule's two examples."""
    found: list[tuple[str, Object]] = []
    for rule in all_rules().values():
        for name, text in (("bad", rule.bad), ("good", rule.good)):
            for body in whole(rule.base, text) if rule.check and (text or rule.base) else []:
                if isinstance(body, dict) and body.get("kind") in KINDS:
                    found.append((f"{rule.id} {name}", body))
    return found


@pytest.fixture
def space(jobset: None, api: Api) -> Iterator[str]:
    """A namespace of the platform."""
    policies = list(admission.objects(load("example").pools))
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
    until("the linter's policies are in force", lambda: found(api, name, PROBE), 60)
    until("that of gangs is in force", lambda: REFUSED in refused(api, name, LABELLED), 60)
    yield name
    api.delete(f"/api/v1/namespaces/{name}")
    for body in policies:
        api.delete(api.path_of(body))


def found(api: Api, space: str, body: Object) -> set[str]:
    """Rules of the policies that find something: the server warns with each. It must accept the
    object otherwise.
    """
    body = body | {"metadata": body["metadata"] | {"namespace": space}}
    path = api.path_of(body).rpartition("/")[0]
    request = api.client.param_serialize(
        "POST",
        path,
        query_params=[("dryRun", "All")],
        header_params={"Content-Type": "application/json"},
        body=body,
        auth_settings=["BearerToken"],
    )
    response = api.client.call_api(*request)
    if response.status >= 400:
        raise ApiException(response.status)
    warnings = " ".join(response.getheaders().getlist("Warning"))
    return {rule for rule in judged() if f"{rule}-" in warnings}


def refused(api: Api, space: str, body: Object) -> str:
    """Why; empty: accepted."""
    body = body | {"metadata": body["metadata"] | {"namespace": space}}
    try:
        api.create(api.path_of(body).rpartition("/")[0], body, dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


def linted(body: Object) -> set[str]:
    report = lint_texts({"a.yaml": yaml_text([body])}, Options(platforms=[load("example")]))
    return {SAME.get(finding.rule, finding.rule) for finding in report.active} & set(judged())


def test_server_and_linter_find_the_same_in_every_example(api: Api, space: str) -> None:
    verdicts: dict[str, tuple[set[str], set[str]]] = {}
    invalid: list[str] = []
    for name, body in examples():
        try:
            verdicts[name] = found(api, space, body), linted(body)
        except ApiException:
            invalid.append(name)
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != verdict[1]} == {}
    assert set(chain.from_iterable(server for server, _ in verdicts.values())) == set(judged()), (
        "each rule finds"
    )
    assert len(verdicts) >= 100, f"invalid on their own: {invalid}"


def test_a_label_makes_the_namespace_refuse_what_is_a_warning_elsewhere(
    api: Api, space: str
) -> None:
    assert found(api, space, PROBE) and not refused(api, space, PROBE)
    api.merge(
        f"/api/v1/namespaces/{space}",
        {"metadata": {"labels": {admission.LABEL_ADMISSION: admission.DENY}}},
    )
    until("it refuses", lambda: "HF118-job-without-deadline" in refused(api, space, PROBE), 30)


@pytest.mark.parametrize("name", ["victim", "victim-0a1b2c3d", "other"])
def test_only_jobs_of_a_gangs_name_have_pods_to_which_its_ports_are_open(
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
    jobs, pods = (
        f"{api_}/namespaces/{space}/{kind}"
        for api_, kind in (("/apis/batch/v1", "jobs"), ("/api/v1", "pods"))
    )
    uid = api.create(jobs, job)["metadata"]["uid"]
    if name == "other":
        until(
            "its pod is refused",
            lambda: REFUSED in str(api.get(f"/api/v1/namespaces/{space}/events")),
            60,
        )
        assert not api.get(pods)["items"]
        return
    until("the controller makes its pod", lambda: api.get(pods)["items"], 60)
    (its,) = (each["metadata"]["name"] for each in api.get(pods)["items"])
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
    assert REFUSED in refused(api, space, pod | {"metadata": forged})
    assert not refused(api, space, pod)
    api.create(pods, pod)
    with pytest.raises(ApiError, match=REFUSED):
        api.merge(f"{pods}/a", {"metadata": {"labels": {LABEL_GANG: "victim"}}})
    api.merge(f"{pods}/{its}", {"metadata": {"labels": {"other": "label"}}})


def test_jobs_as_the_platform_writes_them_pass(api: Api, space: str) -> None:
    for job in (
        own(gpus="1xl4", nodes=1),
        own(gpus="1xl4", nodes=2),
        own(gpus="1xl4", nodes="2..4"),
        own(gpus="none"),
    ):
        (body,) = (each for each in made(job) if each["kind"] in KINDS)
        assert found(api, space, body) == set(), job
