"""What a job needs outside the cluster: an image, buckets of the region, secrets that exist; the
files that it becomes.

Everything that can be wrong with a user's job is refused by its command with a fix, and
nothing is written.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.commands import app
from holdfast.jobs.submit import external_checks
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_PLATFORM
from tests import platforms
from tests.infra.ops.google import Gcloud
from tests.platforms import load, with_images
from workloads.library.tests.jobs.test_job_file import IMAGE, own

FAR = {"location": "EUROPE-WEST4"}
NO_SECRET = (
    "ERROR: (gcloud.secrets.versions.describe) NOT_FOUND: Secret [hf] not found or has no versions."
)
IMPERSONATED = (
    "WARNING: This command is using service account impersonation. All API calls will be executed"
    " as [ci@acme.iam.gserviceaccount.com]."
)
NO_BUCKET = "ERROR: (gcloud.storage.buckets.describe) gs://gone not found: 404."
GIVEN = {
    "--platform": str(platforms.file("example")),
    "--image": IMAGE,
    "--gpus": "1xl4",
}
PROD = str(platforms.file("prod"))
MINE = f"us-central1-docker.pkg.dev/change-me/holdfast-prod/mine@sha256:{'a' * 64}"
CASES: dict[str, tuple[dict[str, str], str, str]] = {
    "GPUs that no pool has": (
        {"--gpus": "8xh100"},
        "no pool of example has this GPU",
        "take one of these GPUs",
    ),
    "more GPUs than a machine has": (
        {"--gpus": "8xl4"},
        "no pool of example has 8 such GPUs on a node",
        "take fewer GPUs on a node",
    ),
    "image is no name": ({"--image": "Train Me"}, "without a digest", "imagetools inspect"),
    "image by tag": (
        {"--image": "us-docker.pkg.dev/p/r/train:v1"},
        "without a digest",
        "imagetools inspect",
    ),
    "role that was not pushed": (
        {"--image": "trainer"},
        "example has no image trainer yet",
        "push the image trainer",
    ),
    "image that the policy refuses": (
        {"--platform": PROD},
        "image policy",
        "ask the platform team to add its repository to security.image_patterns",
    ),
    "run that has no place": (
        {"--platform": PROD, "--image": MINE},
        "no prefix in the",
        'Run(name="my-run")',
    ),
    "bucket in another region": (
        {"--set": "data=gs://far/x"},
        "another region",
        "--location=us-central1",
    ),
    "bucket that is not there": ({"--set": "data=gs://gone/x"}, "no such bucket", "create it"),
    "secret that is not there": (
        {"--set": "secrets.HF_TOKEN=hf"},
        "no such secret",
        "gcloud secrets create hf",
    ),
    "document that is not there": (
        {"--platform": "exmaple.json"},
        "no platform document",
        "document of the cluster",
    ),
}


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def new_job(**changed: str) -> Result:
    options = []
    for pair in (GIVEN | changed).items():
        for word in pair:
            options.append(word)
    return run("new-job", "my-run", *options, "--", "python", "train.py", "--lr", "3")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcloud: Gcloud) -> Path:
    """The current folder, empty; the stand-in of gcloud knows buckets."""
    gcloud.answer("storage buckets describe gs://far", FAR)
    gcloud.refuse("storage buckets describe gs://gone", NO_BUCKET)
    gcloud.refuse("secrets versions describe latest", NO_SECRET)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_refused_with_its_fix_and_nothing_is_written(
    work: Path, case: str
) -> None:
    changed, problem, fix = CASES[case]
    with pytest.raises(InputError) as error:
        new_job(**changed)
    assert problem in str(error.value), error.value
    assert fix in str(error.value), error.value
    assert not list(work.rglob("*"))


@pytest.mark.process
def test_a_job_is_written_and_submit_reads_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_PLATFORM, str(platforms.file("example")))
    done = new_job()
    assert "wrote my-run.yaml" in done.stderr
    assert "my-run-" in done.stdout
    submitted = ["submit", "my-run.yaml", "--dry-run", "--write", "gitops", "--json"]
    body: dict[str, Any] = json.loads(run(*submitted).stdout)
    assert body["usd_per_hour"] > 0
    assert body["purchases"][0]["gpus"] == 1
    repeated = run(*submitted)
    assert repeated.exit_code == 0, "its own manifest is replaced"
    assert "wrote gitops/my-run.yaml" in repeated.stderr, "its own manifest is replaced"
    linted = run("lint", "gitops")
    assert linted.exit_code == 0, linted.stdout
    (work / "my-run.yaml").write_text("mine")
    with pytest.raises(InputError, match="something else in it"):
        new_job()
    assert (work / "my-run.yaml").read_text() == "mine"


@pytest.mark.process
def test_gclouds_warning_hides_no_error(gcloud: Gcloud) -> None:
    gcloud.refuse("storage buckets describe gs://gone", f"{IMPERSONATED}\n{NO_BUCKET}")
    with pytest.raises(InputError, match="no such bucket"):
        external_checks.check(own(data="gs://gone/x"), load("example"))


@pytest.mark.process
def test_grant_for_a_foreign_bucket_names_the_account(gcloud: Gcloud) -> None:
    job = own(data="gs://near/x")
    env = load("example")
    text = "\n".join(external_checks.check(job, env))
    assert "was not checked" in text, "Google does not answer"
    gcloud.answer("storage buckets describe gs://near", {"location": "US-CENTRAL1"})
    (granted,) = external_checks.check(job, env)
    assert "--member=serviceAccount:holdfast-example-trainer@" in granted


def test_a_checkpoint_folder_without_write_access_is_refused(gcloud: Gcloud) -> None:
    env = load("example")
    bucket = f"gs://{env.buckets['checkpoints']}"
    for allowed in ("", f"{bucket}/default", f"{bucket}/default/mine/"):
        assert external_checks.check(own(checkpoints=allowed), env) == []
    with pytest.raises(InputError, match="may not write") as refused:
        list(external_checks.check(own(checkpoints=f"{bucket}/defaults"), env))
    assert f"{bucket}/default, or a folder below" in str(refused.value)
    apart = load("prod")
    with pytest.raises(InputError, match="may not write"):
        list(
            external_checks.check(
                own(name=apart.runs[0].name, checkpoints=f"gs://{apart.buckets['checkpoints']}/x"),
                apart,
            )
        )


def test_a_role_is_the_image_that_was_pushed_for_the_environment() -> None:
    context = RenderContext(load("example"))
    with pytest.raises(InputError, match="ask the platform team to push the image trainer"):
        external_checks.resolve("trainer", context)
    with pytest.raises(InputError) as refused:
        external_checks.require_image("cloud-sql-proxy", context.platform)
    # No image of a user is that of the proxy.
    assert refused.value.fix == "ask the platform team to push the image cloud-sql-proxy"
    pushed = RenderContext(with_images("example", "trainer"))
    assert external_checks.resolve("trainer", pushed).endswith(f"/trainer@sha256:{'a' * 64}")
