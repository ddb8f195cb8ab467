"""What runs already is left alone, or replaced where that is asked for; a second job of its run is
announced.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.clients.api import ApiError, Object, suggest_fix
from holdfast.job_commands import cli
from holdfast.jobs.submit import existing_jobs
from holdfast.support.errors import InputError, Stopped, Unjudged
from holdfast.vocabulary.kubernetes import LABEL_NAME

PATH = "/apis/batch/v1/namespaces/training/jobs"
OVER = {"conditions": [{"type": "Complete", "status": "True"}]}


def job(name: str, *, run: str = "", image: str = "a", **changes: Any) -> Object:
    labels = {"labels": {LABEL_NAME: run}} if run else {}
    spec = {"template": {"spec": {"containers": [{"image": image}]}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name} | labels,
        "spec": spec,
    } | changes


class Cluster:
    """A cluster of Jobs by path, with the Jobs that it was asked to delete."""

    def __init__(self, *live: Object) -> None:
        self.live = {}
        for body in live:
            self.live[f"{PATH}/{body['metadata']['name']}"] = body
        self.ending: list[str] = []

    def path_of(self, body: Object) -> str:
        return f"{PATH}/{body['metadata']['name']}"

    def find(self, path: str) -> Object | None:
        body = self.live.get(path)
        if path in self.ending:
            self.live.pop(path, None)  # its pods are gone by the next question
        return body

    def items(self, path: str, labelSelector: str) -> list[Object]:
        run = labelSelector.partition("=")[2]
        bodies: list[Object] = []
        for body in self.live.values():
            if body["metadata"].get("labels", {}).get(LABEL_NAME) == run:
                bodies.append(body)
        return bodies

    def apply(self, path: str, body: Object, **_: object) -> Object:
        return body

    def delete(self, path: str, *, propagationPolicy: str) -> None:
        assert propagationPolicy == "Foreground"
        self.ending.append(path)


def compare(
    cluster: Any, *documents: Object, replace: bool = False
) -> tuple[list[Object], list[str]]:
    return existing_jobs.compare(cluster, [*documents], replace=replace)


def test_running_jobs_are_not_sent_and_changed_files_are_refused() -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
    }
    assert compare(Cluster(job("j")), config, job("j")) == ([config], [])
    changed = job("j", image="b")
    with pytest.raises(
        Stopped, match=r"Job/j cannot be started while this runs.*--replace"
    ) as refused:
        compare(Cluster(job("j")), changed)
    assert refused.value.got == "the file differs from it: spec.template.spec.containers"
    assert compare(Cluster(job("j")), changed, replace=True) == ([changed], [f"{PATH}/j"])


def test_two_jobs_never_write_one_run_unannounced() -> None:
    of_next_image = job("j-2222", run="j")
    running_ = job("j-1111", run="j")
    over = job("j-0000", run="j", status=OVER)
    with pytest.raises(Stopped) as refused:
        compare(Cluster(running_, over), of_next_image)
    assert refused.value.got == "Job/j-1111 writes the same run, j"
    assert compare(Cluster(running_, over), of_next_image, replace=True) == (
        [of_next_image],
        [f"{PATH}/j-1111"],
    )
    assert compare(Cluster(over), of_next_image) == ([of_next_image], [])
    # A job of a JobSet and one of the same file are no other jobs.
    child = job("j-1111-workers-0", run="j")
    child["metadata"]["ownerReferences"] = [{"kind": "JobSet"}]
    first = job("j-a", run="j")
    second = job("j-b", run="j")
    assert compare(Cluster(child, first), first, second) == ([second], [])


def test_the_replaced_job_is_gone_before_the_next_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = Cluster(job("j"))
    existing_jobs.end(cluster, f"{PATH}/j", sleep=lambda _: None)
    assert cluster.live == {}
    monkeypatch.setattr(existing_jobs, "GONE_WITHIN_S", -1.0)
    cluster = Cluster(job("j"))
    cluster.delete = lambda *_, **__: None
    with pytest.raises(Unjudged, match="is not gone"):
        existing_jobs.end(cluster, f"{PATH}/j", sleep=lambda _: None)


def test_a_job_that_the_cluster_refuses_replaces_nothing() -> None:
    refused = job("j-2222", run="j", image="of nobody")
    cluster: Any = Cluster(job("j-1111", run="j"))

    def refuse(*_: object, **__: object) -> Object:
        raise ApiError(403, "admission webhook denied the request: no such registry")

    cluster.apply = refuse
    plan: Any = SimpleNamespace(documents=[refused], uploads=[])
    with pytest.raises(InputError, match="refuses Job/j-2222; nothing was sent"):
        cli._start(cluster, plan, yes=True, replace=True)
    assert cluster.ending == []


TEMPLATE_CHANGED = "spec.template: Invalid value: core.PodTemplateSpec{}: field is immutable"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (422, f'Job.batch "j" is invalid: {TEMPLATE_CHANGED}'),
        (
            422,
            'Job.batch "j" is invalid: [spec.completions: Invalid value: 2: field is immutable,'
            f" {TEMPLATE_CHANGED}]",
        ),
        (403, "admission webhook denied the request: spec.network: Value is immutable"),
    ],
)
def test_a_running_job_is_replaced_for_an_immutable_field(status: int, message: str) -> None:
    cluster: Any = Cluster(job("j"))

    def refuse(*_: object, **__: object) -> Object:
        raise ApiError(
            status,
            message,
        )

    cluster.apply = refuse
    changed = job("j", image="b")
    assert compare(cluster, changed, replace=True) == ([changed], [f"{PATH}/j"])


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "admission webhook denied the request: no such registry"),
        (422, "ValidatingAdmissionPolicy denied the request: spec.template must name a team"),
        (400, 'strict decoding error: unknown field "spec.hours"'),
        (422, f'Job.batch "j" is invalid: [spec.selector: Required value, {TEMPLATE_CHANGED}]'),
        (500, "failed calling webhook: context deadline exceeded"),
    ],
)
def test_a_running_job_stays_if_the_cluster_refuses_the_next_one(status: int, message: str) -> None:
    cluster: Any = Cluster(job("j"))

    def refuse(*_: object, **__: object) -> Object:
        raise ApiError(
            status,
            message,
        )

    cluster.apply = refuse
    changed = job("j", image="b")
    plan: Any = SimpleNamespace(
        documents=[changed],
        uploads=[],
    )
    with pytest.raises(InputError, match="refuses Job/j; nothing was sent"):
        cli._start(cluster, plan, yes=True, replace=True)
    assert cluster.ending == []


def test_an_object_that_cannot_change_is_deleted_and_not_installed() -> None:
    """Tests with the words of the API server."""
    printed = (
        'PersistentVolume "data-training" is invalid: spec.persistentvolumesource: Forbidden:'
        " spec.persistentvolumesource is immutable after creation"
    )
    volume = {
        "kind": "PersistentVolume",
        "metadata": {"name": "data-training"},
    }
    fix = suggest_fix(ApiError(422, printed), volume)
    assert "kubectl delete PersistentVolume data-training" in fix
    assert "Retain" in fix
    assert "this environment" in fix
    assert suggest_fix(ApiError(422, "spec.x: Required value"), volume) == ""
