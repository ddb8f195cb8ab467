"""Image names of a job: by digest, by role, and by a tag that its registry answers for, with a login where it asks."""

import base64
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.jobs import outside
from holdfast.manifests.render_context import RenderContext
from tests.infra.ops.google import Gcloud
from tests.platforms import load, with_images
from tests.workloads.images.registry import Registry, serving
from workloads.library.tests.http_server import answering
from workloads.library.tests.jobs.test_job_file import IMAGE

MANIFEST = json.dumps({"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}).encode()
LOGIN = f"Basic {base64.b64encode(b'oauth2accesstoken:ya29.mine').decode()}"


@pytest.fixture
def context() -> RenderContext:
    return RenderContext(load("example"))


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Registry]:
    with serving(Registry(tmp_path / "public")) as server:
        yield server


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Wants a bearer token, and gives it for Google's own tokens only; as Artifact Registry."""
    with serving(Registry(tmp_path / "private", login=LOGIN)) as server:
        monkeypatch.setattr(outside, "GOOGLES", (server.host,))
        yield server


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The metadata server of a machine with a service account; without gcloud."""

    def answer(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, object]:
        known = path.endswith("/default/token") and headers["Metadata-Flavor"] == "Google"
        return 200 if known else 403, {"access_token": "ya29.mine", "expires_in": 3599}

    with answering(answer) as address:
        monkeypatch.setenv("GCE_METADATA_HOST", address.removeprefix("http://"))
        monkeypatch.setenv("PATH", "")
        yield


def test_a_tag_becomes_the_digest_that_its_registry_names_and_is_warned_of(
    public: Registry, context: RenderContext
) -> None:
    digest = public.add("team/train", "v1", MANIFEST)
    found = outside.resolve(f"{public.host}/team/train:v1", context)
    assert found.image == f"{public.host}/team/train@{digest}" and "a tag, which moves" in found.warning
    assert outside.resolve(IMAGE, context) == outside.Resolved(image=IMAGE)


def test_the_login_of_gcloud_opens_a_registry_that_wants_a_token(
    private: Registry, context: RenderContext, gcloud: Gcloud
) -> None:
    digest = private.add("team/train", "v1", MANIFEST)
    gcloud.answer("auth print-access-token", "ya29.mine")
    assert outside.resolve(f"{private.host}/team/train:v1", context).image.endswith(f"@{digest}")
    assert private.given == [LOGIN]
    gcloud.answer("auth print-access-token", "ya29.of-somebody-else")
    with pytest.raises(InputError, match=r"needs a login.*artifactregistry.reader"):
        outside.resolve(f"{private.host}/team/train:v1", context)


@pytest.mark.usefixtures("metadata")
def test_a_machine_without_gcloud_shows_the_token_of_its_service_account(
    private: Registry, context: RenderContext
) -> None:
    digest = private.add("team/train", "v1", MANIFEST)
    assert outside.resolve(f"{private.host}/team/train:v1", context).image.endswith(f"@{digest}")


def test_no_login_is_shown_to_a_registry_that_is_not_googles(
    private: Registry, context: RenderContext, gcloud: Gcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "GOOGLES", (".pkg.dev",))
    gcloud.answer("auth print-access-token", "ya29.mine")
    with pytest.raises(InputError, match="needs a login"):
        outside.resolve(f"{private.host}/team/train:v1", context)
    assert private.given == [""] and gcloud.calls() == []


def test_a_registry_that_has_no_such_image_or_does_not_answer_is_no_digest(
    public: Registry, context: RenderContext
) -> None:
    with pytest.raises(InputError, match=r"no such image.*team/train:v2.*push it"):
        outside.resolve(f"{public.host}/team/train:v2", context)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{free.getsockname()[1]}/a:b"
        with pytest.raises(InputError, match=r"registry gives no digest.*imagetools inspect"):
            outside.resolve(silent, context)


def test_a_role_is_the_image_that_was_pushed_for_the_environment(
    context: RenderContext,
) -> None:
    with pytest.raises(InputError, match="make images ENV=example"):
        outside.resolve("trainer", context)
    with pytest.raises(InputError, match="fix: make operators-pin ENV=example"):
        context.require_digests(["cloud-sql-proxy"])
    pushed = RenderContext(with_images("example", "trainer"))
    assert outside.resolve("trainer", pushed).image.endswith(f"/trainer@sha256:{'a' * 64}")
