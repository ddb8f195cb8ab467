"""The rendered manifests: current, clean, within the Pod Security Standard `restricted`, and in
agreement with the cluster.
"""

import re
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from holdfast.lint.engine import Options, lint
from holdfast.lint.formats import text as as_text
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from infra.describe import described
from tests.platforms import load
from tests.workloads.manifests.rendered import (
    KUSTOMIZATION,
    RENDERED,
    Body,
    bodies,
    templates,
    workloads,
)
from workloads.__main__ import app
from workloads.manifests import gpu_metrics
from workloads.manifests.rendering import platform, render


def test_make_render_leaves_no_diff(env: str) -> None:
    assert render(described(env), RENDERED, write=False) == [], (
        "run `make render` and commit the result"
    )


def test_nothing_of_the_platform_half_computes_or_needs_a_gpu(env: str) -> None:
    """Applying it on an empty cluster must start nothing that costs money but what watches and
    moves.
    """
    assert not {b["kind"] for b in bodies(env, "platform")} & {"JobSet", "HorizontalPodAutoscaler"}
    jobs = {
        b["metadata"]["labels"]["app.kubernetes.io/name"]
        for b in bodies(env, "platform")
        if b["kind"] == "Job"
    }
    assert jobs == ({"migrate"} if load(env).database else set())
    deployments = [
        b["metadata"]["name"] for b in bodies(env, "platform") if b["kind"] == "Deployment"
    ]
    assert deployments == ["exporter", "mover"]
    limits = [
        c["resources"]["limits"]
        for b in bodies(env, "platform")
        for t in templates(b)
        for c in t["spec"]["containers"]
    ]
    assert limits and not any("nvidia.com/gpu" in each for each in limits)
    assert {b["kind"] for b in bodies(env, "samples")} >= {"Job", "JobSet", "Deployment"}


@pytest.mark.parametrize("half", ["platform", "samples"])
def test_a_kustomization_names_every_file_of_its_half(env: str, half: str) -> None:
    folder = RENDERED / env / half
    body = YAML(typ="safe").load((folder / KUSTOMIZATION).read_text())
    files = sorted(path.name for path in folder.glob("*.yaml"))
    assert body["kind"] == "Kustomization" and body["resources"] == [
        file for file in files if file != KUSTOMIZATION
    ]


def test_the_rendered_manifests_are_clean() -> None:
    report = lint([RENDERED], Options())
    accepted = {finding.rule for finding in report.findings if finding.suppressed}
    open_findings = [finding for finding in report.findings if not finding.suppressed]
    assert report.objects > 100 and not open_findings and accepted == {"HF008", "HF119"}, as_text(
        report
    )


def test_no_priority_of_ours_reaches_the_system_classes() -> None:
    values = {}
    for b in bodies("example"):
        if b["kind"] == "PriorityClass":
            values[b["metadata"]["name"]] = b["value"]
    assert values["spot-workload-low"] == -5
    assert max(values.values()) < 1_000_000


# What a second apply of the platform half would do: nothing to jobs, and nothing to what Kueue owns
# of them.

WORK = ("Job", "JobSet", "Deployment", "CronJob", "StatefulSet")


def applied(env: str, *kinds: str) -> list[Body]:
    return [body for body in platform(RenderContext(load(env))) if body["kind"] in kinds]


def test_no_work_that_is_over_begins_anew(env: str) -> None:
    """A job that is cleared away when it is over would be made again, at the price of its machines."""
    assert {body["metadata"]["name"] for body in applied(env, *WORK)} >= {
        "exporter",
        "verify-checkpoints",
    }
    once = applied(env, "Job", "JobSet")
    assert bool(once) == (load(env).database is not None)
    for body in once:
        assert body["kind"] == "Job" and re.fullmatch("migrate-[0-9a-f]+", body["metadata"]["name"])
        assert "ttlSecondsAfterFinished" not in body["spec"]


def test_no_field_that_kueue_writes_is_applied(env: str) -> None:
    """Two owners of `spec.suspend` are a conflict, and the one who insists starts what waits, or
    stops what runs.
    """
    for body in applied(env, *WORK):
        assert "suspend" not in body["spec"], body["metadata"]["name"]
        assert "kueue.x-k8s.io/queue-name" not in body["metadata"].get("labels", {}), body[
            "metadata"
        ]["name"]


# The command `render`: what is written, what is shown, and the exit codes.

FILES = sorted(
    path.relative_to(RENDERED / "example").as_posix()
    for path in (RENDERED / "example").rglob("*.*")
)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_render_shows_and_writes_what_differs_and_removes_what_no_longer_belongs(
    tmp_path: Path,
) -> None:
    shutil.copytree(RENDERED / "example", tmp_path / "example")
    edited = tmp_path / "example" / FILES[-1]
    left = tmp_path / "example" / "platform" / "99-old.yaml"
    edited.write_text("edited by hand\n")
    left.write_text("kind: Pod\n")
    done = call("render", "example", "--out", tmp_path, "--check")
    assert done.exit_code == 1 and done.stdout.split() == [edited.as_posix(), left.as_posix()]
    assert done.stderr == "2 files differ: python -m workloads render\n"
    assert edited.read_text() == "edited by hand\n" and left.exists()
    assert call("render", "example", "--out", tmp_path).exit_code == 0
    assert (
        edited.read_text() == (RENDERED / "example" / FILES[-1]).read_text() and not left.exists()
    )


def test_render_of_an_unknown_environment_names_the_known_ones(tmp_path: Path) -> None:
    done = call("render", "exmaple", "--out", tmp_path)
    assert isinstance(done.exception, InputError) and "example" in str(done.exception)
    assert not any(tmp_path.iterdir())


def containers(spec: Body) -> list[Body]:
    return [
        c
        for key in ("initContainers", "containers", "ephemeralContainers")
        for c in spec.get(key) or ()
    ]


def test_every_namespace_but_that_of_the_devices_enforces_restricted(env: str) -> None:
    """What the level asks of pods is judged by a real API server, in
    tests/cluster/test_rendered.py.
    """
    spaces = {}
    for b in bodies(env):
        if b["kind"] == "Namespace":
            spaces[b["metadata"]["name"]] = b["metadata"]["labels"]
    levels = {name: labels["pod-security.kubernetes.io/enforce"] for name, labels in spaces.items()}
    assert {name: level for name, level in levels.items() if level != "restricted"} == {
        gpu_metrics.NAMESPACE: "privileged"
    }
    pods = [body["metadata"] for body, _ in workloads(env)]
    assert len(pods) >= 9 and {meta["namespace"] for meta in pods} <= spaces.keys()
    assert [meta["name"] for meta in pods if meta["namespace"] == gpu_metrics.NAMESPACE] == [
        gpu_metrics.NAME
    ]


def test_every_container_is_pinned_bounded_and_cannot_write_its_root(env: str) -> None:
    for body, template in workloads(env):
        spec = template["spec"]
        assert spec["serviceAccountName"] != "default" and spec["enableServiceLinks"] is False, (
            body["metadata"]["name"]
        )
        assert isinstance(spec["automountServiceAccountToken"], bool) and spec["priorityClassName"]
        for container in containers(spec):
            assert "@sha256:" in container["image"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
        for volume in spec["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]
