"""The rendered manifests: current, clean, and in agreement with the cluster."""

import pytest
from ruamel.yaml import YAML

from holdfast.lint.engine import Options, lint
from holdfast.lint.formats import text as as_text
from infra.describe import described
from tests.platforms import load, names
from tests.workloads.manifests.rendered import KUSTOMIZATION, RENDERED, bodies, templates
from workloads.manifests.rendering import render


@pytest.mark.parametrize("name", names())
def test_make_render_leaves_no_diff(name: str) -> None:
    assert render(described(name), RENDERED, write=False) == [], "run `make render` and commit the result"


@pytest.mark.parametrize("name", names())
def test_nothing_of_the_platform_half_computes_or_needs_a_gpu(name: str) -> None:
    """Applying it on an empty cluster must start nothing that costs money but what watches and moves."""
    assert not {b["kind"] for b in bodies(name, "platform")} & {"JobSet", "HorizontalPodAutoscaler"}
    jobs = {b["metadata"]["labels"]["app.kubernetes.io/name"] for b in bodies(name, "platform") if b["kind"] == "Job"}
    assert jobs == ({"migrate"} if load(name).database else set())
    deployments = [b["metadata"]["name"] for b in bodies(name, "platform") if b["kind"] == "Deployment"]
    assert deployments == ["exporter", "mover"]
    limits = [
        c["resources"]["limits"]
        for b in bodies(name, "platform")
        for t in templates(b)
        for c in t["spec"]["containers"]
    ]
    assert limits and not any("nvidia.com/gpu" in each for each in limits)
    assert {b["kind"] for b in bodies(name, "samples")} >= {"Job", "JobSet", "Deployment"}


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("half", ["platform", "samples"])
def test_a_kustomization_names_every_file_of_its_half(name: str, half: str) -> None:
    folder = RENDERED / name / half
    body = YAML(typ="safe").load((folder / KUSTOMIZATION).read_text())
    files = sorted(path.name for path in folder.glob("*.yaml"))
    assert body["kind"] == "Kustomization" and body["resources"] == [file for file in files if file != KUSTOMIZATION]


def test_the_rendered_manifests_are_clean() -> None:
    report = lint([RENDERED], Options())
    accepted = {finding.rule for finding in report.findings if finding.suppressed}
    open_findings = [finding for finding in report.findings if not finding.suppressed]
    assert report.objects > 100 and not open_findings and accepted == {"HF008", "HF119"}, as_text(report)


def test_no_priority_of_ours_reaches_the_system_classes() -> None:
    values = {b["metadata"]["name"]: b["value"] for b in bodies("example") if b["kind"] == "PriorityClass"}
    assert values["spot-workload-low"] == -5
    assert max(values.values()) < 1_000_000


def test_each_quota_is_bounded_by_what_the_environment_can_have() -> None:
    env = load("example")
    lent = 0
    for queue in (b for b in bodies("example") if b["kind"] == "ClusterQueue"):
        for flavor in queue["spec"]["resourceGroups"][0]["flavors"]:
            lent += int(next(r["nominalQuota"] for r in flavor["resources"] if r["name"] == "nvidia.com/gpu"))
    most = sum(p.max_nodes * p.gpus_per_node for p in env.pools)
    most += sum(env.auto_provisioning.values())
    assert 0 < lent <= most
