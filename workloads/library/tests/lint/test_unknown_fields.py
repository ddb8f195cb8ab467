"""Tests that fields which no object has are found, with where they belong."""

import pytest

from holdfast.lint import api_fields
from holdfast.lint.engine import Options, lint_texts
from tests import platforms
from workloads.library.tests.lint import write_api_fields

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: training}
spec:
  JOB
  template:
    spec:
      POD
      containers:
      - name: main
        image: registry.example/trainer:1.4
        CONTAINER
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: training}
spec:
  JOBSET
  replicatedJobs:
  - name: workers
    template:
      spec:
        JOB
        template:
          spec:
            POD
            containers: [{name: main, image: "registry.example/trainer:1.4"}]
"""
WORKER_SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    size: 2
    workerTemplate: {spec: {POD, containers: [{name: main, image: vllm}]}}
"""


def find(base: str, place: str, field: str) -> list[tuple[str, str]]:
    """Returns path and fix of the unknown fields after one field was added at a place."""
    text = base.replace(f"{place}\n", f"{field}\n").replace(f"{place},", f"{field},")
    for other in ("JOBSET", "JOB", "POD", "CONTAINER"):
        text = text.replace(f"  {other}\n", "\n").replace(f"{other}, ", "")
    report = lint_texts({"a.yaml": text}, Options(platforms=[platforms.load("example")]))
    return [(hit.where, hit.fix) for hit in report.findings if hit.rule == "HF501"]


@pytest.mark.parametrize(
    ("base", "place", "field", "path", "fix"),
    [
        (JOB, "POD", "terminationGracePeriod: 15", "terminationGracePeriod", "GracePeriodSeconds?"),
        (JOB, "POD", "backoffLimit: 3", "spec.template.spec.backoffLimit", "spec.backoffLimit"),
        (JOB, "JOB", "restartPolicy: Never", "spec.restartPolicy", "template"),
        (JOB, "JOB", "activeDeadlineSecond: 5", "activeDeadlineSecond", "activeDeadlineSeconds?"),
        (JOB, "CONTAINER", "nodeSelector: {a: b}", "nodeSelector", "spec.template.spec.nodeSele"),
        (
            JOB,
            "CONTAINER",
            "limits: {cpu: 1}",
            "containers.0.limits",
            "containers.0.resources.limits",
        ),
        (JOB, "CONTAINER", "volumeMount: [{name: a}]", "volumeMount", "volumeMounts?"),
        (JOB, "CONTAINER", "resources: {limit: {cpu: 1}}", "resources.limit", "limits?"),
        (JOBSET, "JOBSET", "failurePolicies: {}", "spec.failurePolicies", "failurePolicy?"),
        (JOBSET, "JOBSET", "maxRestarts: 3", "spec.maxRestarts", "spec.failurePolicy.maxRestarts"),
        (JOBSET, "JOB", "parallelisms: 2", "template.spec.parallelisms", "parallelism?"),
        (JOBSET, "POD", "priorityClass: a", "priorityClass", "priorityClassName?"),
        (WORKER_SET, "POD", "toleration: []", "toleration", "tolerations?"),
    ],
)
def test_unknown_field_is_found_with_its_right_name_or_place(
    base: str, place: str, field: str, path: str, fix: str
) -> None:
    [(found_where, found_fix)] = find(base, place, field)
    assert path in found_where
    assert fix in found_fix


@pytest.mark.parametrize("base", [JOB, JOBSET, WORKER_SET])
@pytest.mark.parametrize("field", ["hostNetwork: false", "$setElementOrder/tolerations: []"])
def test_known_fields_and_patch_directives_pass(base: str, field: str) -> None:
    assert find(base, "POD", field) == []


def test_beta_kinds_are_not_judged() -> None:
    assert api_fields.find_type("batch/v1beta1", "CronJob") == ""
    assert api_fields.find_type("batch/v1", "CronJob") == "V1CronJob"


@pytest.mark.process
def test_table_matches_the_installed_packages() -> None:
    assert api_fields.FILE.read_text() == write_api_fields.format_table(), (
        "run: python -m workloads.library.tests.lint.write_api_fields"
    )
