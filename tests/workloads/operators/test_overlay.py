"""Tests of the objects that `make operators` sends, without a cluster."""

from functools import cache

import pytest
import yaml

from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.kubernetes import LABEL_PART_OF, PART_OF
from tests.platforms import load
from workloads.operators import overlay, settings
from workloads.operators.catalogue import KUEUE, OPERATORS, WEBHOOKS, Body, Operator


def objects(operator: Operator, name: str = "example") -> list[Body]:
    return overlay.objects(operator, RenderContext(load(name)))


@pytest.fixture(autouse=True)
def without_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the schemas: they are 2.5 MB, and nothing here looks at them."""
    monkeypatch.setattr(overlay, "upstream", load_vendored)


@cache
def load_vendored(operator: Operator) -> list[Body]:
    bodies: list[Body] = []
    for part in operator.file.read_text().split("\n---\n"):
        if "\nkind: CustomResourceDefinition\n" not in part:
            bodies.append(yaml.load(part, yaml.CSafeLoader))
    return bodies


def find_object(operator: Operator, kind: str, name: str = "example") -> Body:
    (body,) = [body for body in objects(operator, name) if body["kind"] == kind]
    return body


def test_fail_closed_webhooks_only_match_platform_objects() -> None:
    own_kinds = {KUEUE.name: {*settings.OWN_KINDS}, "jobset": {"jobsets"}}
    count = 0
    for operator in OPERATORS:
        for webhook in list_webhooks(operator):
            count += 1
            assert webhook["failurePolicy"] == "Fail"
            namespaces = webhook.get("namespaceSelector", {}).get("matchLabels")
            if namespaces == {LABEL_PART_OF: PART_OF} or webhook.get("objectSelector"):
                continue
            for rule in webhook["rules"]:
                for resource in rule["resources"]:
                    assert resource.split("/")[0] in own_kinds[operator.name]
    assert count > 8


def list_webhooks(operator: Operator) -> list[Body]:
    webhooks: list[Body] = []
    for body in objects(operator):
        if body["kind"] in WEBHOOKS:
            webhooks += body["webhooks"]
    return webhooks


def test_operators_run_twice_on_the_system_pool_by_digest(env: str) -> None:
    context = RenderContext(load(env))
    for operator in OPERATORS:
        deployment = find_object(operator, "Deployment", env)
        pod = deployment["spec"]["template"]["spec"]
        assert deployment["spec"]["replicas"] == 2
        assert pod["nodeSelector"] == context.system.selector()
        assert pod["tolerations"] == context.system.tolerations()
        prefix = f"{context.platform.registry}/{operator.name}@sha256:"
        assert pod["containers"][0]["image"].startswith(prefix)


def test_kueue_does_not_wait_for_admitted_pods() -> None:
    """Ensures that Kueue's default is off.

    It evicts a batch with five of eight workers from its nodes every half an hour.
    """
    text = find_object(KUEUE, "ConfigMap")["data"]["controller_manager_config.yaml"]
    configuration = yaml.safe_load(text)
    assert "waitForPodsReady" not in configuration, "a limit would switch it on again"
    assert configuration["featureGates"]["DisableWaitForPodsReady"] is True


def test_kueue_queues_train_jobs_in_our_namespaces() -> None:
    """The TrainJob has the queue: a JobSet that has one is started at once by Trainer."""
    text = find_object(KUEUE, "ConfigMap")["data"]["controller_manager_config.yaml"]
    assert "trainer.kubeflow.org/trainjob" in yaml.safe_load(text)["integrations"]["frameworks"]
    selectors: list[Body] = []
    for webhook in list_webhooks(KUEUE):
        if any("trainjobs" in rule["resources"] for rule in webhook["rules"]):
            selectors.append(webhook["namespaceSelector"])
    assert selectors == [settings.OURS, settings.OURS]


def test_new_configuration_changes_the_pod_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ensures new pods: the file is mounted by subPath, so old pods would keep the old one."""
    before = read_digest()
    monkeypatch.setitem(settings.CONFIGURATIONS["kueue"], "manageJobsWithoutQueueName", True)
    assert read_digest() != before


def read_digest() -> str:
    template = find_object(KUEUE, "Deployment")["spec"]["template"]
    return template["metadata"]["annotations"][overlay.ANNOTATION_CONFIG]
