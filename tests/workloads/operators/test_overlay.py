"""What `make operators` would send, judged without a cluster."""

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
    """The schemas are 2.5 MB, and nothing here looks at them."""
    monkeypatch.setattr(overlay, "upstream", vendored)


@cache
def vendored(operator: Operator) -> list[Body]:
    parts = operator.file.read_text().split("\n---\n")
    return [
        yaml.load(part, yaml.CSafeLoader)
        for part in parts
        if "\nkind: CustomResourceDefinition\n" not in part
    ]


def test_no_webhook_that_fails_closed_stands_before_pods_or_jobs_of_others() -> None:
    kept = {KUEUE.name: {*settings.OWN_KINDS}, "jobset": {"jobsets"}}
    seen = 0
    for operator in OPERATORS:
        for webhook in (
            w for b in objects(operator) if b["kind"] in WEBHOOKS for w in b["webhooks"]
        ):
            plurals = set()
            for rule in webhook["rules"]:
                for resource in rule["resources"]:
                    plurals.add(resource.split("/")[0])
            scope = webhook.get("namespaceSelector", {}), webhook.get("objectSelector", {})
            seen += 1
            assert webhook["failurePolicy"] == "Fail"
            assert (
                plurals <= kept[operator.name]
                or scope[0].get("matchLabels") == {LABEL_PART_OF: PART_OF}
                or scope[1]
            )
    assert seen > 8


def test_operators_run_twice_on_the_system_pool_by_digest(env: str) -> None:
    context = RenderContext(load(env))
    for operator in OPERATORS:
        (deployment,) = [b for b in objects(operator, env) if b["kind"] == "Deployment"]
        pod = deployment["spec"]["template"]["spec"]
        assert deployment["spec"]["replicas"] == 2
        assert (pod["nodeSelector"], pod["tolerations"]) == (
            context.system.selector(),
            context.system.tolerations(),
        )
        assert pod["containers"][0]["image"].startswith(
            f"{context.platform.registry}/{operator.name}@sha256:"
        )


def test_kueue_waits_for_no_pod_of_a_job_that_it_admitted() -> None:
    """Its default takes a batch with five of eight workers off its nodes every half an hour."""
    (text,) = [
        b["data"]["controller_manager_config.yaml"]
        for b in objects(KUEUE)
        if b["kind"] == "ConfigMap"
    ]
    sent = yaml.safe_load(text)
    assert "waitForPodsReady" not in sent, "a limit of its own would switch it on again"
    assert sent["featureGates"]["DisableWaitForPodsReady"] is True


def test_another_configuration_is_another_pod_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mounted by subPath: without this the pods would run on with the old one."""

    def digest() -> str:
        (deployment,) = [b for b in objects(KUEUE) if b["kind"] == "Deployment"]
        return deployment["spec"]["template"]["metadata"]["annotations"][overlay.ANNOTATION_CONFIG]

    before = digest()
    monkeypatch.setitem(settings.CONFIGURATIONS["kueue"], "manageJobsWithoutQueueName", True)
    assert digest() != before
