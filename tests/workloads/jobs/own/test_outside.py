"""What a job needs outside the cluster: images by digest, buckets of the region, secrets that exist."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.contract.errors import InputError
from infra.environments import load
from tests.infra.ops.google import Gcloud
from tests.workloads.jobs.own.test_job_file import IMAGE, own
from workloads.__main__ import app
from workloads.jobs.own import images, outside
from workloads.manifests.builders import render_context
from workloads.manifests.builders.render_context import RenderContext

DIGEST = f"sha256:{'b' * 64}"


class Registry(BaseHTTPRequestHandler):
    """One image, for whoever has fetched a token: the distribution API as registries speak it."""

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer t0ken":
            host = self.headers["Host"]
            self.send_response(401)
            realm = f'Bearer realm="http://{host}/token",service="{host}",scope="repository:team/train:pull"'
            self.send_header("WWW-Authenticate", realm)
        elif self.path == "/v2/team/train/manifests/v1" and "oci.image.index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "t0ken"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def context() -> RenderContext:
    return RenderContext(load("example"))


def test_a_tag_becomes_the_digest_that_its_registry_names_and_is_warned_of(
    registry: str, context: RenderContext
) -> None:
    found = images.resolve(f"{registry}/team/train:v1", context)
    assert found.image == f"{registry}/team/train@{DIGEST}" and "a tag, which moves" in found.warning
    assert images.resolve(IMAGE, context) == images.Resolved(image=IMAGE)


def test_a_registry_that_has_no_such_image_or_does_not_answer_is_no_digest(
    registry: str, context: RenderContext
) -> None:
    with pytest.raises(InputError, match=r"registry gives no digest.*404.*imagetools inspect"):
        images.resolve(f"{registry}/team/train:v2", context)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{free.getsockname()[1]}/a:b"
        with pytest.raises(InputError, match="registry gives no digest"):
            images.resolve(silent, context)


def test_a_role_is_the_image_that_was_pushed_for_the_environment(
    context: RenderContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = tmp_path / "digests.json"
    monkeypatch.setattr(render_context, "DIGESTS", digests)
    with pytest.raises(InputError, match="make images ENV=example"):
        images.resolve("trainer", RenderContext(load("example")))
    digests.write_text(json.dumps({"example": {"trainer": "c" * 64}}))
    assert images.resolve("trainer", context).image.endswith(f"/trainer@sha256:{'c' * 64}")


@pytest.mark.process
def test_a_bucket_of_another_region_and_a_secret_that_is_not_there_are_refused(gcloud: Gcloud) -> None:
    env = load("example")
    gcloud.answer("storage buckets describe gs://far", {"location": "EUROPE-WEST4"})
    with pytest.raises(InputError, match=r"another region: got gs://far in europe-west4; allowed: us-central1"):
        outside.check(own(data="gs://far/x"), env)
    gcloud.answer("storage buckets describe gs://near", {"location": "US-CENTRAL1"})
    (granted,) = outside.check(own(data="gs://near/x"), env)
    assert "--member=serviceAccount:holdfast-example-trainer@" in granted
    gone = "ERROR: (gcloud.secrets.versions.describe) NOT_FOUND: Secret [hf] not found or has no versions."
    gcloud.refuse("secrets versions describe latest", gone)
    with pytest.raises(InputError, match=r"no such secret: got hf, version latest.*gcloud secrets create hf"):
        outside.check(own(secrets={"HF_TOKEN": "hf"}), env)


def test_where_google_cannot_be_asked_a_line_says_so(gcloud: Gcloud) -> None:
    assert any("was not checked" in line for line in outside.check(own(data="gs://near/x"), load("example")))


def words(*more: str) -> list[str]:
    return ["new-job", "my-run", "--image", IMAGE, "--gpus", "1xl4", *more, "--", "python", "train.py", "--lr", "3"]


@pytest.mark.process
@pytest.mark.usefixtures("gcloud")
def test_a_job_is_written_as_a_file_and_as_manifests_and_submit_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words("--write", "gitops", "--json"), catch_exceptions=False)
    body: dict[str, Any] = json.loads(done.stdout)
    assert body["schema"] == "holdfast.new-job/1" and body["written"] == ["my-run.yaml", "gitops/my-run.yaml"]
    assert body["usd_per_hour"] > 0 and body["purchases"][0]["gpus"] == 1
    again = CliRunner().invoke(app, ["submit", "my-run.yaml", "--dry-run", "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["usd_per_hour"] == body["usd_per_hour"]
    linted = CliRunner().invoke(app, ["lint", "gitops"], catch_exceptions=False)
    assert linted.exit_code == 0, linted.stdout


@pytest.mark.process
@pytest.mark.usefixtures("gcloud")
def test_what_is_refused_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-run.yaml").write_text("mine")
    with pytest.raises(InputError, match="something else in it"):
        CliRunner().invoke(app, words("--write", "gitops"), catch_exceptions=False)
    with pytest.raises(InputError, match="no pool of example"):
        CliRunner().invoke(app, words("--gpus", "8xh100", "--out", "other.yaml"), catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir() if path.name != "bin"] == ["my-run.yaml"]
    assert (tmp_path / "my-run.yaml").read_text() == "mine"
