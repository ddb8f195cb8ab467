"""Code from a folder: from `new-job --source` to the process that runs it in a pod."""

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.jobs.source import archive
from holdfast.jobs.submit import prepared_job, source_upload
from holdfast.jobs.submit.prepared_job import Prepared
from holdfast.support.errors import Unjudged
from tests.platforms import file, with_images
from workloads.library.tests.jobs.test_job_file import IMAGE, own
from workloads.library.tests.jobs.test_manifests import get_pod_spec, list_kinds, read_variables

TRAIN = """\
import os, pathlib, sys
from pkg.model import SIZE
print(SIZE, sys.argv[1], os.environ["HOLDFAST_SOURCE"])
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/model.py").write_text("SIZE = 3\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "results.bin").write_text("x")
    (folder / ".gitignore").write_text("*.bin\n")
    return folder


def prepare(folder: Path, **fields: Any) -> Prepared:
    command = () if "predictor" in fields else ("python", "train.py", "9")
    job = own(source=folder.name, command=command, **fields)
    return prepared_job.prepare(job, with_images("example"), folder.parent)


def run_pod(prepared: Prepared, folder: Path) -> str:
    """Run the containers of the pod one after the other, with its mounts as folders.

    Returns what the program printed.
    """
    archives = folder / "archive"
    archives.mkdir(parents=True)
    for body in prepared.bodies:
        for name, text in body.get("binaryData", {}).items():
            (archives / name).write_bytes(base64.b64decode(text))
    if prepared.upload:
        (archives / prepared.upload.url.rpartition("/")[2]).write_bytes(prepared.upload.data)
    pod = get_pod_spec(prepared.bodies)
    places = {
        "/run/holdfast-source": str(archives),
        "/source": str(folder / "source"),
    }
    (folder / "source").mkdir()
    output = ""
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        for mount in container["volumeMounts"]:
            if mount["mountPath"] == "/source":
                assert mount.get("readOnly", False) == (container["name"] == "main")
        command = [sys.executable, *container["command"][1:]]
        for path, place in places.items():
            command = [
                place + word.removeprefix(path) if word.startswith(path) else word
                for word in command
            ]
        env = {"PATH": os.environ["PATH"]} | read_variables(container)
        shown = subprocess.run(
            command,
            cwd=places.get(container.get("workingDir", ""), folder),
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        output = shown.stdout
    return output


def test_a_folder_runs_without_a_new_image(code: Path, tmp_path: Path) -> None:
    prepared = prepare(code)
    digest = f"sha256:{archive.pack(code).digest}"
    assert run_pod(prepared, tmp_path / "pod") == f"3 9 {digest}\n"
    job = prepared.bodies[-1]
    assert job["metadata"]["annotations"]["holdfast.dev/source"] == digest
    pod = job["spec"]["template"]
    assert pod["metadata"]["annotations"]["holdfast.dev/source"] == digest
    (unpack,) = pod["spec"]["initContainers"]
    assert unpack["image"] == IMAGE
    (note,) = [line for line in prepared.notes if line.startswith("source:")]
    assert "3 files" in note
    assert digest in note
    config_map = prepared.bodies[0]
    assert config_map["kind"] == "ConfigMap"
    assert config_map["immutable"]
    assert prepared.upload is None
    assert not (tmp_path / "pod/source/results.bin").exists()


def test_an_edit_makes_another_job_that_resumes_the_run(code: Path) -> None:
    first = prepare(code)
    (code / "train.py").write_text(TRAIN + "# an edit\n")
    second = prepare(code)
    names: list[str] = []
    labels = set()
    for prepared in (first, second):
        labels.add(prepared.bodies[-1]["metadata"]["labels"]["app.kubernetes.io/name"])
        names += {body["metadata"]["name"] for body in prepared.bodies}
    assert len(names) == len(set(names))
    assert labels == {"my-run"}


def test_gangs_batches_and_sweeps_take_it_too(code: Path, tmp_path: Path) -> None:
    for number, fields in enumerate(
        (
            {
                "nodes": 2,
                "gpus": "1xa100",
                "capacity": "spot",
            },
            {
                "nodes": "2..3",
                "gpus": "1xa100",
                "capacity": "spot",
            },
            {
                "nodes": 2,
                "sharded": True,
                "gpus": "1xa100",
                "capacity": "spot",
            },
            {
                "predictor": "pkg.model:predict",
                "data": "gs://bucket/x",
                "capacity": "spot",
            },
            {
                "sweep": {"A": [1, 2]},
                "capacity": "spot",
            },
            {"gpus": "none"},
        )
    ):
        prepared = prepare(code, **fields)
        pod = get_pod_spec(prepared.bodies)
        (main,) = pod["containers"]
        assert main["workingDir"] == "/source", number
        assert pod["initContainers"][0]["name"] == "source"
        annotations = prepared.bodies[-1]["metadata"]["annotations"]
        assert annotations["holdfast.dev/source"].startswith("sha256:")


FAKE_GCLOUD = """\
#!/bin/sh
[ -n "$REFUSED" ] && echo "HTTPError 403: no storage.objects.create" >&2 && exit 1
printf '%s\\n' "$@" >> "$RECORD"
cp "$4" "$COPY"
"""


def test_a_large_folder_goes_through_the_bucket(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "table.dat").write_bytes(os.urandom(archive.MAX_CONFIG_MAP_BYTES + 1))
    prepared = prepare(code)
    digest = archive.pack(code).digest
    assert prepared.upload is not None
    assert prepared.upload.url.endswith(f"/my-run/source/{digest}.tar.gz")
    assert list_kinds(prepared.bodies) == ["Job"]
    pod = get_pod_spec(prepared.bodies)
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "source-archive"]
    attributes = volume["csi"]["volumeAttributes"]
    bucket, _, folder = prepared.upload.url.removeprefix("gs://").partition("/")
    assert attributes["bucketName"] == bucket
    assert attributes["mountOptions"].endswith(f"only-dir={folder.rpartition('/')[0]}")
    assert run_pod(prepared, tmp_path / "pod") == f"3 9 sha256:{digest}\n"

    gcloud = tmp_path / "bin/gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text(FAKE_GCLOUD)
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gcloud.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("COPY", str(tmp_path / "copy"))
    plan = prepared_job.plan(prepared)
    source_upload.upload(plan.uploads, lambda line: None)
    words = (tmp_path / "record").read_text().splitlines()
    assert words[:3] == ["storage", "cp", "--no-clobber"]
    assert words[-1] == prepared.upload.url
    assert (tmp_path / "copy").read_bytes() == prepared.upload.data
    monkeypatch.setenv("REFUSED", "1")
    with pytest.raises(Unjudged, match=r"nothing was started.*403.*roles/storage.objectUser"):
        source_upload.upload(plan.uploads, lambda line: None)


def test_points_read_the_folder_that_a_listed_run_may_use(code: Path) -> None:
    (code / "table.dat").write_bytes(os.urandom(archive.MAX_CONFIG_MAP_BYTES + 1))
    prepared = prepare(code, sweep={"A": [1, 2]}, capacity="spot")
    assert prepared.upload is not None
    assert "/my-run-0/source/" in prepared.upload.url


@pytest.mark.process
def test_new_job_writes_the_folder_as_seen_from_its_file(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["new-job", "my-run", "--image", IMAGE, "--gpus", "1xl4", "--source", code.name]
    words += [
        "--out",
        "jobs/my-run.yaml",
        "--platform",
        str(file("example")),
    ]
    done = CliRunner().invoke(
        app,
        [
            *words,
            "--",
            "python",
            "train.py",
        ],
        catch_exceptions=False,
    )
    assert "source: 3 files" in done.stderr
    path = tmp_path / "jobs/my-run.yaml"
    document = YAML(typ="safe").load(path.read_text())
    assert document["source"] == "../code"
    assert prepared_job.read_job(document, path, with_images("example")).bodies
