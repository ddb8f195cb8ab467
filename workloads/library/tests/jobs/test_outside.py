"""What a job needs outside the cluster: buckets of the region, secrets that exist; and the files that it becomes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.contract.environment import ENV_PLATFORM
from holdfast.contract.errors import InputError
from holdfast.jobs import outside
from holdfast.manifests.render_context import RenderContext
from tests.infra.ops.google import Gcloud
from tests.platforms import file, load, with_images
from workloads.library.tests.jobs.test_job_file import IMAGE, own


@pytest.mark.process
def test_the_right_on_a_bucket_of_ones_own_is_named_with_its_account(gcloud: Gcloud) -> None:
    env = load("example")
    gcloud.answer("storage buckets describe gs://near", {"location": "US-CENTRAL1"})
    (granted,) = outside.check(own(data="gs://near/x"), env)
    assert "--member=serviceAccount:holdfast-example-trainer@" in granted


def test_where_google_cannot_be_asked_a_line_says_so(gcloud: Gcloud) -> None:
    assert any("was not checked" in line for line in outside.check(own(data="gs://near/x"), load("example")))


def test_a_folder_of_the_bucket_that_the_job_may_not_write_is_refused(gcloud: Gcloud) -> None:
    env = load("example")
    bucket = f"gs://{env.buckets['checkpoints']}"
    for allowed in ("", f"{bucket}/default", f"{bucket}/default/mine/"):
        assert outside.check(own(checkpoints=allowed), env) == []
    with pytest.raises(InputError, match="may not write") as refused:
        list(outside.check(own(checkpoints=f"{bucket}/defaults"), env))
    assert f"{bucket}/default, or a folder below" in str(refused.value)
    apart = load("prod")
    with pytest.raises(InputError, match="may not write"):
        list(outside.check(own(name=apart.runs[0].name, checkpoints=f"gs://{apart.buckets['checkpoints']}/x"), apart))


def test_a_role_is_the_image_that_was_pushed_for_the_environment() -> None:
    context = RenderContext(load("example"))
    with pytest.raises(InputError, match="make images ENV=example"):
        outside.resolve("trainer", context)
    with pytest.raises(InputError, match="fix: make operators-pin ENV=example"):
        context.require_digests(["cloud-sql-proxy"])
    pushed = RenderContext(with_images("example", "trainer"))
    assert outside.resolve("trainer", pushed).endswith(f"/trainer@sha256:{'a' * 64}")


def words() -> list[str]:
    options = ["--platform", str(file("example")), "--image", IMAGE, "--gpus", "1xl4"]
    return ["new-job", "my-run", *options, "--", "python", "train.py", "--lr", "3"]


@pytest.mark.process
@pytest.mark.usefixtures("gcloud")
def test_a_job_is_written_as_a_file_and_as_manifests_and_submit_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ENV_PLATFORM, str(file("example")))
    done = CliRunner().invoke(app, words(), catch_exceptions=False)
    assert "wrote my-run.yaml" in done.stderr and "my-run-" in done.stdout
    submitted = ["submit", "my-run.yaml", "--dry-run", "--write", "gitops", "--json"]
    body: dict[str, Any] = json.loads(CliRunner().invoke(app, submitted, catch_exceptions=False).stdout)
    assert body["usd_per_hour"] > 0 and body["purchases"][0]["gpus"] == 1
    again = CliRunner().invoke(app, submitted, catch_exceptions=False)
    assert again.exit_code == 0 and "wrote gitops/my-run.yaml" in again.stderr, "its own manifest is replaced"
    linted = CliRunner().invoke(app, ["lint", "gitops"], catch_exceptions=False)
    assert linted.exit_code == 0, linted.stdout


@pytest.mark.process
@pytest.mark.usefixtures("gcloud")
def test_what_is_refused_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-run.yaml").write_text("mine")
    with pytest.raises(InputError, match="something else in it"):
        CliRunner().invoke(app, words(), catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir() if path.name != "bin"] == ["my-run.yaml"]
    assert (tmp_path / "my-run.yaml").read_text() == "mine"
