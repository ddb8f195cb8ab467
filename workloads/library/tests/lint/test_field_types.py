"""Tests that types and required fields come from the API's own schema."""

import pytest

from holdfast.lint import api_fields
from holdfast.lint.engine import Options, lint_texts

CLUSTER_QUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: spot
spec:
  queueingStrategy: STRATEGY
  namespaceSelector: {}
  resourceGroups:
  - coveredResources:
    - cpu
    flavors:
    - name: spot
      resources:
      - name: cpu
        nominalQuota: QUOTA
"""
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: server
spec:
  terminationGracePeriodSeconds: GRACE
  imagePullSecrets: SECRETS
  containers:
  - name: main
    image: server
    resources:
      limits:
        cpu: 2
        memory: 4Gi
    readinessProbe:
      httpGet:
        port: PORT
"""
VALUES = {
    "GRACE": "30",
    "SECRETS": "[{name: pull}]",
    "PORT": "http",
    "STRATEGY": "StrictFIFO",
    "QUOTA": "100",
}


def find_messages(text: str, changes: dict[str, str]) -> set[str]:
    """Returns the messages of the rules over types after the placeholders got their values."""
    for name, value in {**VALUES, **changes}.items():
        text = text.replace(name, value)
    report = lint_texts({"a.yaml": text}, Options())
    messages: set[str] = set()
    for finding in report.findings:
        if finding.rule in ("HF502", "HF504", "HF510"):
            messages.add(finding.message)
    return messages


@pytest.mark.parametrize(
    ("manifest", "name", "value", "message"),
    [
        (POD, "GRACE", "30s", "takes a whole number, and is 30s"),
        (POD, "SECRETS", "[pull]", "takes a mapping, and is pull"),
        (POD, "SECRETS", "{name: pull}", "takes a list, and is a mapping"),
        (POD, "GRACE", "0.5", "takes a whole number, and is 0.5"),
        (POD, "PORT", "null", "has no port"),
        (CLUSTER_QUEUE, "QUOTA", "null", "has no nominalQuota"),
    ],
)
def test_wrong_types_and_missing_fields_are_found(
    manifest: str, name: str, value: str, message: str
) -> None:
    assert find_messages(manifest, {}) == set()
    assert message in find_messages(manifest, {name: value})


def test_operator_enumerations_come_from_their_schemas() -> None:
    values = api_fields.get_enums("kueue.x-k8s.io/v1beta2/ClusterQueue.spec")
    assert values["queueingStrategy"] == ["StrictFIFO", "BestEffortFIFO"]
    messages = find_messages(CLUSTER_QUEUE, {"STRATEGY": "Fifo"})
    assert any("Fifo" in message for message in messages)


def test_a_reference_in_a_template_is_not_judged() -> None:
    assert find_messages(POD, {"GRACE": "$(GRACE_SECONDS)"}) == set()


def test_a_template_without_containers_is_a_patch() -> None:
    patch = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: server
spec:
  template:
    spec:
      nodeSelector:
        disk: ssd
"""
    assert find_messages(patch, {}) == set()
