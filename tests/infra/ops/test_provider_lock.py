"""The checksums that a stack's folder gets: the mirror's own, or the registry's."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from infra.contract.versions import GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION
from infra.ops import deploy, doctor, engine, provider_lock
from tests.infra.samples import EXAMPLE
from tests.support import program

REQUIREMENT = f'{{ source = "{GOOGLE_PROVIDER_SOURCE}", version = "{GOOGLE_PROVIDER_VERSION}" }}'
# An engine that has asked the registry.
REGISTRY = """#!/bin/sh
echo "$*" >> {calls}
echo 'provider "registry.terraform.io/hashicorp/google" {{' > .terraform.lock.hcl
"""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a mirror with one package, as `make provider` leaves it."""
    folder = tmp_path / "mirror"
    system = json.loads(engine.offline().run(tmp_path, "version", "-json"))["platform"]
    package = folder / engine.REGISTRIES[0] / GOOGLE_PROVIDER_SOURCE / GOOGLE_PROVIDER_VERSION
    program(package / system / f"terraform-provider-google_v{GOOGLE_PROVIDER_VERSION}", "built")
    monkeypatch.setenv("HOLDFAST_PROVIDER_MIRROR", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TF_CLI_CONFIG_FILE", raising=False)
    provider_lock.write_for_mirror(folder)
    return folder


@pytest.fixture
def stack(tmp_path: Path, mirror: Path) -> Path:
    """Return a folder with the lock file that a synthesis copies."""
    folder = tmp_path / "stack"
    folder.mkdir()
    (folder / "main.tf").write_text(
        f"terraform {{\n  required_providers {{\n    google = {REQUIREMENT}\n  }}\n}}\n"
    )
    lock = provider_lock.find()
    assert lock
    assert lock.parent == mirror
    shutil.copy(lock, folder / ".terraform.lock.hcl")
    return folder


def test_engine_accepts_the_package_that_was_built(stack: Path) -> None:
    lock = stack / ".terraform.lock.hcl"
    (expected,) = {line for line in lock.read_text().splitlines() if "h1:" in line}
    engine.offline().run(stack, "init", "-no-color")
    assert expected in lock.read_text()


def test_engine_refuses_a_package_that_changed_since(stack: Path, mirror: Path) -> None:
    for binary in mirror.rglob("terraform-provider-google_v*"):
        binary.write_text("something else")
    with pytest.raises(engine.EngineFailed, match="checksum"):
        engine.offline().run(stack, "init", "-no-color")


def test_engine_refuses_a_build_that_the_registry_lacks(stack: Path) -> None:
    shutil.copy(provider_lock.LOCK, stack / ".terraform.lock.hcl")
    with pytest.raises(engine.EngineFailed, match="checksum"):
        engine.offline().run(stack, "init", "-no-color")


@pytest.fixture
def archive(tmp_path: Path, mirror: Path, stack: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Turn the mirror into one of archives, as `terraform providers mirror` writes it, and lock the
    archive's checksum.
    """
    (package,) = mirror.glob("registry.terraform.io/*/*/*/*")
    name = f"terraform-provider-google_{GOOGLE_PROVIDER_VERSION}_{package.name}.zip"
    target = package.parents[1] / name
    with zipfile.ZipFile(target, "w") as archive:
        for file in package.iterdir():
            archive.write(file, file.name)
    shutil.rmtree(package.parent)
    (mirror / provider_lock.LOCK.name).unlink()
    lock = tmp_path / "provider.lock.hcl"
    checksum = hashlib.sha256(target.read_bytes()).hexdigest()
    lock.write_text(
        f'provider "registry.terraform.io/{GOOGLE_PROVIDER_SOURCE}" {{\n'
        f'  version = "{GOOGLE_PROVIDER_VERSION}"\n  hashes = ["zh:{checksum}"]\n}}\n'
    )
    monkeypatch.setattr(provider_lock, "LOCK", lock)
    shutil.copy(provider_lock.find() or "", stack / ".terraform.lock.hcl")
    return target


def test_archives_in_a_mirror_are_compared_with_the_lock(stack: Path, archive: Path) -> None:
    ok, text, _ = dict(doctor.ON_THIS_MACHINE)["provider"](EXAMPLE)
    assert ok, text
    engine.offline().run(stack, "init", "-no-color")
    shutil.rmtree(stack / ".terraform")
    with zipfile.ZipFile(archive, "a") as changed:
        changed.writestr("more", "something else")
    with pytest.raises(engine.EngineFailed, match="checksum"):
        engine.offline().run(stack, "init", "-no-color")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Replace the mirror by the registry, and cdktf by nothing; return the engine's calls."""
    calls = tmp_path / "calls"
    program(tmp_path / "bin" / "terraform", REGISTRY.format(calls=calls))
    monkeypatch.setenv("HOLDFAST_ENGINE", str(tmp_path / "bin" / "terraform"))
    monkeypatch.setenv("HOLDFAST_PROVIDER_MIRROR", str(tmp_path / "none"))
    commands = program(tmp_path / "cdktf", "#!/bin/sh\n").parent
    monkeypatch.setattr(deploy, "NODE_COMMANDS", commands)
    monkeypatch.setattr(provider_lock, "LOCK", tmp_path / "provider.lock.hcl")
    monkeypatch.setattr("sys.stdin", StringIO())
    return lambda: calls.read_text().splitlines() if calls.exists() else []


def test_first_deployment_writes_checksums(
    registry: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert deploy.deploy(EXAMPLE, yes=True) == 0
    (call,) = registry()
    for platform in provider_lock.PLATFORMS:
        assert f"-platform={platform}" in call
    assert provider_lock.LOCK.read_text() == 'provider "registry.terraform.io/hashicorp/google" {\n'
    assert provider_lock.find() == provider_lock.LOCK
    assert capsys.readouterr().err.count("commit it") == 1


def test_opentofu_replaces_checksums_from_terraform(
    registry: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its registry has packages of its own, so that nothing would be compared."""
    written = f'provider "registry.opentofu.org/{GOOGLE_PROVIDER_SOURCE}" {{'
    script = f"#!/bin/sh\necho '{written}' > .terraform.lock.hcl\n"
    monkeypatch.setenv("HOLDFAST_ENGINE", str(program(tmp_path / "tofu", script)))
    provider_lock.LOCK.write_text(f'provider "registry.terraform.io/{GOOGLE_PROVIDER_SOURCE}" {{\n')
    assert deploy.deploy(EXAMPLE, yes=True) == 0
    assert provider_lock.LOCK.read_text() == f"{written}\n"
