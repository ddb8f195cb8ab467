"""Image names of a job: by digest, by role, and by a tag whose digest gcloud names."""

import pytest

from holdfast.contract.errors import InputError
from holdfast.jobs import outside
from holdfast.manifests.render_context import RenderContext
from tests.infra.ops.google import Gcloud
from tests.platforms import load, with_images
from workloads.library.tests.jobs.test_job_file import IMAGE

NAME, DIGEST = "us-docker.pkg.dev/team/repo/train", f"sha256:{'c' * 64}"
DESCRIBE = f"artifacts docker images describe {NAME}:v1"
pytestmark = pytest.mark.process


@pytest.fixture
def context() -> RenderContext:
    return RenderContext(load("example"))


def test_a_tag_becomes_the_digest_that_gcloud_names_and_is_warned_of(context: RenderContext, gcloud: Gcloud) -> None:
    gcloud.answer(DESCRIBE, {"image_summary": {"digest": DIGEST, "registry": "us-docker.pkg.dev"}})
    found = outside.resolve(f"{NAME}:v1", context)
    assert found.image == f"{NAME}@{DIGEST}" and "a tag, which moves" in found.warning
    assert outside.resolve(IMAGE, context) == outside.Resolved(image=IMAGE)


def test_a_tag_without_a_digest_is_refused(context: RenderContext, gcloud: Gcloud) -> None:
    gcloud.refuse(DESCRIBE, "ERROR: (gcloud.artifacts.docker.images.describe) Image not found.")
    with pytest.raises(InputError, match=r"gives no digest.*not found.*push it.*imagetools inspect"):
        outside.resolve(f"{NAME}:v1", context)
    gcloud.answer(DESCRIBE, {"image_summary": None})
    with pytest.raises(InputError, match="gives no digest"):
        outside.resolve(f"{NAME}:v1", context)
    before = gcloud.calls()
    for elsewhere in ("nginx", "ghcr.io/team/train:v1", "evil.example/us-docker.pkg.dev/train:v1"):
        with pytest.raises(InputError, match=r"other than Google's.*imagetools inspect"):
            outside.resolve(elsewhere, context)
    assert gcloud.calls() == before


def test_a_role_is_the_image_that_was_pushed_for_the_environment(
    context: RenderContext,
) -> None:
    with pytest.raises(InputError, match="make images ENV=example"):
        outside.resolve("trainer", context)
    with pytest.raises(InputError, match="fix: make operators-pin ENV=example"):
        context.require_digests(["cloud-sql-proxy"])
    pushed = RenderContext(with_images("example", "trainer"))
    assert outside.resolve("trainer", pushed).image.endswith(f"/trainer@sha256:{'a' * 64}")
