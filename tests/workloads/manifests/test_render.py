"""Tests that the rendered manifests are current, clean, and within Pod Security `restricted`."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from holdfast.lint.engine import Options, lint
from holdfast.lint.formats import text as as_text
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from infra.describe import load_platform
from tests.platforms import load
from tests.workloads.manifests.rendered import (
    KUSTOMIZATION,
    RENDERED,
    Body,
    list_containers,
    list_kinds,
    load_objects,
    strip_version,
    templates,
    workloads,
)
from workloads.__main__ import app
from workloads.manifests import gpu_metrics
from workloads.manifests.rendering import platform, render


def test_make_render_leaves_no_diff(env: str) -> None:
    assert render(load_platform(env), RENDERED, write=False) == [], (
        "run `make render` and commit the result"
    )


def test_platform_half_needs_no_gpu(env: str) -> None:
    """Ensures that applying it on an empty cluster starts exporter and mover only."""
    assert not list_kinds(env, "JobSet", "HorizontalPodAutoscaler", half="platform")
    jobs = [strip_version(body) for body in list_kinds(env, "Job", half="platform")]
    assert jobs == (["migrate"] if load(env).database else [])
    deployments = list_kinds(env, "Deployment", half="platform")
    names = [body["metadata"]["name"] for body in deployments]
    assert names == ["exporter", "mover"]
    containers: list[Body] = []
    for body in load_objects(env, "platform"):
        for template in templates(body):
            containers += template["spec"]["containers"]
    assert containers
    for container in containers:
        assert "nvidia.com/gpu" not in container["resources"]["limits"]
    for kind in ("Job", "JobSet", "Deployment"):
        assert list_kinds(env, kind, half="samples")


@pytest.mark.parametrize("half", ["platform", "samples"])
def test_kustomization_names_every_file(env: str, half: str) -> None:
    folder = RENDERED / env / half
    body = YAML(typ="safe").load((folder / KUSTOMIZATION).read_text())
    files = sorted(path.name for path in folder.glob("*.yaml"))
    files.remove(KUSTOMIZATION)
    assert body["kind"] == "Kustomization"
    assert body["resources"] == files


def test_the_rendered_manifests_are_clean() -> None:
    report = lint([RENDERED], Options())
    accepted_rules = {finding.rule for finding in report.suppressed}
    assert report.objects > 100, as_text(report)
    assert not report.active, as_text(report)
    assert accepted_rules == {"HF008", "HF119"}, as_text(report)


def test_priorities_stay_below_the_system_classes() -> None:
    values: dict[str, int] = {}
    for body in list_kinds("example", "PriorityClass"):
        values[body["metadata"]["name"]] = body["value"]
    assert values["spot-workload-low"] == -5
    assert max(values.values()) < 1_000_000


# A second apply of the platform half changes no jobs, and none of Kueue's fields.

WORK = ("Job", "JobSet", "Deployment", "CronJob", "StatefulSet")


def list_applied(env: str, *kinds: str) -> list[Body]:
    bodies: list[Body] = []
    for body in platform(RenderContext(load(env))):
        if body["kind"] in kinds:
            bodies.append(body)
    return bodies


def test_completed_work_is_not_applied_again(env: str) -> None:
    """Ensures that finished Jobs stay: a Job that was deleted would run and cost again."""
    names = []
    for body in list_applied(env, *WORK):
        names.append(body["metadata"]["name"])
    assert {"exporter", "verify-checkpoints"} <= set(names)
    jobs = list_applied(env, "Job", "JobSet")
    assert bool(jobs) == (load(env).database is not None)
    for body in jobs:
        assert body["kind"] == "Job"
        assert re.fullmatch("migrate-[0-9a-f]+", body["metadata"]["name"])
        assert "ttlSecondsAfterFinished" not in body["spec"]


def test_kueue_fields_are_not_applied(env: str) -> None:
    """Ensures one owner of `spec.suspend`.

    With two, an apply would start a job that waits, or stop one that runs.
    """
    for body in list_applied(env, *WORK):
        metadata = body["metadata"]
        assert "suspend" not in body["spec"], metadata["name"]
        assert "kueue.x-k8s.io/queue-name" not in metadata.get("labels", {}), metadata["name"]


# The command `render`: files, output and exit codes.

FILES = sorted((RENDERED / "example").rglob("*.*"))
LAST_FILE = FILES[-1].relative_to(RENDERED)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_render_writes_differences_and_removes_stale_files(tmp_path: Path) -> None:
    shutil.copytree(RENDERED / "example", tmp_path / "example")
    edited_file = tmp_path / LAST_FILE
    stale_file = tmp_path / "example" / "platform" / "99-old.yaml"
    edited_file.write_text("edited by hand\n")
    stale_file.write_text("kind: Pod\n")
    result = call("render", "example", "--out", tmp_path, "--check")
    assert result.exit_code == 1
    assert result.stdout.split() == [edited_file.as_posix(), stale_file.as_posix()]
    assert result.stderr == "2 files differ: python -m workloads render\n"
    assert edited_file.read_text() == "edited by hand\n"
    assert stale_file.exists()
    assert call("render", "example", "--out", tmp_path).exit_code == 0
    assert edited_file.read_text() == FILES[-1].read_text()
    assert not stale_file.exists()


def test_unknown_environment_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    result = call("render", "exmaple", "--out", tmp_path)
    assert isinstance(result.exception, InputError)
    assert "example" in str(result.exception)
    assert not any(tmp_path.iterdir())


def test_namespaces_enforce_restricted_except_gpu_metrics(env: str) -> None:
    """Reads the labels; a real API server judges pods in tests/cluster/test_rendered.py."""
    levels: dict[str, str] = {}
    for body in list_kinds(env, "Namespace"):
        metadata = body["metadata"]
        levels[metadata["name"]] = metadata["labels"]["pod-security.kubernetes.io/enforce"]
    assert levels[gpu_metrics.NAMESPACE] == "privileged"
    assert set(levels.values()) == {"restricted", "privileged"}
    assert list(levels.values()).count("privileged") == 1
    objects = [body["metadata"] for body, _ in workloads(env)]
    assert len(objects) >= 9
    assert {metadata["namespace"] for metadata in objects} <= levels.keys()
    namespace = gpu_metrics.NAMESPACE
    names = [metadata["name"] for metadata in objects if metadata["namespace"] == namespace]
    assert names == [gpu_metrics.NAME]


def test_containers_are_pinned_bounded_and_read_only(env: str) -> None:
    for body, template in workloads(env):
        spec = template["spec"]
        assert spec["serviceAccountName"] != "default", body["metadata"]["name"]
        assert spec["enableServiceLinks"] is False, body["metadata"]["name"]
        assert isinstance(spec["automountServiceAccountToken"], bool)
        assert spec["priorityClassName"]
        assert "ephemeralContainers" not in spec
        for container in list_containers(template):
            assert "@sha256:" in container["image"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
        for volume in spec["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]


def test_render_says_what_an_edit_takes(tmp_path: Path) -> None:
    """Renders a platform with one cap more first, then the environment without it."""
    before = load_platform("example")
    caps = {**before.auto_provisioning, "nvidia-h100-80gb": 8}
    quotas = {**before.quotas, "nvidia-h100-80gb": 8}
    render(replace(before, auto_provisioning=caps, quotas=quotas), tmp_path, write=True)
    done = CliRunner().invoke(
        app,
        [
            "render",
            "example",
            "--out",
            str(tmp_path),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "example takes: flex-start of nvidia-h100-80gb: 8 to 0 GPUs" in done.stderr
    assert "example takes: ResourceFlavor/flex-nvidia-h100-80gb" in done.stderr
    second = CliRunner().invoke(
        app,
        [
            "render",
            "example",
            "--out",
            str(tmp_path),
        ],
    )
    assert "takes" not in second.stderr
