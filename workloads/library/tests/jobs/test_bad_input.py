"""Everything that can be wrong with a job of one's own, by its command: refused with a fix, and nothing is written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.contract.errors import InputError
from tests import platforms
from tests.infra.ops.google import Gcloud
from workloads.library.tests.jobs.test_job_file import IMAGE

FAR = {"location": "EUROPE-WEST4"}
NO_SECRET = "ERROR: (gcloud.secrets.versions.describe) NOT_FOUND: Secret [hf] not found or has no versions."
NO_BUCKET = "ERROR: (gcloud.storage.buckets.describe) gs://gone not found: 404."
GIVEN = {
    "--platform": str(platforms.file("example")),
    "name": "my-run",
    "--image": IMAGE,
    "--gpus": "1xl4",
    "command": "python train.py",
}
CASES: dict[str, tuple[dict[str, str], str, str]] = {
    "unknown machine": ({"--gpus": "8xa1000"}, "unknown GPU", "did you mean"),
    "GPUs that no pool has": ({"--gpus": "8xh100"}, "no pool of example", ""),
    "image is no name": ({"--image": "Train Me"}, "without a digest", "imagetools inspect"),
    "image by tag": ({"--image": "us-docker.pkg.dev/p/r/train:v1"}, "without a digest", "imagetools inspect"),
    "role that was not pushed": ({"--image": "trainer"}, "image digests of example", "make images ENV=example"),
    "image that the policy refuses": (
        {"--platform": str(platforms.file("prod"))},
        "image policy",
        "security.image_patterns",
    ),
    "run that has no place": (
        {
            "--platform": str(platforms.file("prod")),
            "--image": f"us-central1-docker.pkg.dev/change-me/holdfast-prod/mine@sha256:{'a' * 64}",
        },
        "no prefix in the checkpoint bucket",
        'Run(name="my-run")',
    ),
    "bucket in another region": ({"--data": "gs://far/x"}, "another region", "--location=us-central1"),
    "bucket that is not there": ({"--data": "gs://gone/x"}, "no such bucket", "create it"),
    "secret that is not there": ({"--set": "secrets.HF_TOKEN=hf"}, "no such secret", "gcloud secrets create hf"),
    "document that is not there": ({"--platform": "exmaple.json"}, "no platform document", "infra describe"),
}


def refused(changed: dict[str, str]) -> InputError:
    given = GIVEN | changed
    options = [word for key, value in given.items() if key.startswith("--") for word in (key, value)]
    words = ["new-job", given["name"], *options, "--", *given["command"].split()]
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    return caught.value


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcloud: Gcloud) -> Callable[[], list[str]]:
    """What was written, beside the stand-in of gcloud."""
    gcloud.answer("storage buckets describe gs://far", FAR)
    gcloud.refuse("storage buckets describe gs://gone", NO_BUCKET)
    gcloud.refuse("secrets versions describe latest", NO_SECRET)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return lambda: sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_refused_with_its_fix_and_nothing_is_written(here: Callable[[], list[str]], case: str) -> None:
    changed, what, fix = CASES[case]
    error = refused(changed)
    assert what in error.what or what in str(error), error
    assert fix in str(error), error
    assert here() == []
