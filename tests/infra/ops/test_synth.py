"""The library that a synthesis imports: the sources of a checkout, or the wheel that it pins."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from holdfast.support.errors import Unjudged
from infra.ops.synth import library_variables

WHEEL = "vendor/holdfast_gke-9.9.9-py3-none-any.whl"


@pytest.fixture
def platform(tmp_path: Path) -> Path:
    (tmp_path / "vendor").mkdir()
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as wheel:
        wheel.writestr("holdfast/__init__.py", "__version__ = '9.9.9'")
    digest = hashlib.sha256((tmp_path / WHEEL).read_bytes()).hexdigest()
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/dev.txt").write_text(f"./{WHEEL} --hash=sha256:{digest}\n")
    return tmp_path


def test_pinned_wheel_is_unpacked(platform: Path) -> None:
    for _ in range(2):
        (first, *_) = library_variables(platform)["PYTHONPATH"].split(":")
        assert "9.9.9" in (Path(first) / "holdfast/__init__.py").read_text()


def test_process_that_unpacked_it_meanwhile_is_no_failure(
    platform: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two plans of one platform may start at once."""
    unpack = zipfile.ZipFile.extractall

    def unpack_twice(wheel: zipfile.ZipFile, folder: Path) -> None:
        unpack(wheel, folder)
        unpack(wheel, platform / "out/library" / folder.name)

    monkeypatch.setattr(zipfile.ZipFile, "extractall", unpack_twice)
    test_pinned_wheel_is_unpacked(platform)
    (library,) = (platform / "out/library").iterdir()
    assert (library / "holdfast").is_dir()


def test_sources_come_before_a_wheel(platform: Path) -> None:
    (platform / "workloads/library").mkdir(parents=True)
    library = library_variables(platform)["PYTHONPATH"].split(":")[0]
    assert library == str(platform / "workloads/library")


@pytest.mark.parametrize("state", ["missing", "another", "not pinned"])
def test_wheel_without_its_hash_is_not_imported(platform: Path, state: str) -> None:
    if state == "missing":
        (platform / WHEEL).unlink()
    elif state == "another":
        (platform / WHEEL).write_bytes(b"")
    else:
        (platform / "requirements/dev.txt").write_text("holdfast-gke==9.9.9\n")
    with pytest.raises(Unjudged, match="fix: "):
        library_variables(platform)
