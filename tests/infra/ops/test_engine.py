"""The engine is found as documented, finds the provider, and reaches nothing else."""

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.support.errors import InputError, Unjudged
from infra.ops import engine
from tests.support import ROOT, program, ran

VERSION = '#!/bin/sh\necho \'{"terraform_version": "1.9.8"}\'\n'


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empties PATH of this repository's tools, and gives the test a cache of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HOLDFAST_ENGINE", "HOLDFAST_PROVIDER_MIRROR", "TF_CLI_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_the_callers_choice_comes_before_terraform(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(empty_path / "tofu", VERSION)
    assert engine.command() == ("tofu",)
    assert engine.offline().version() == ("tofu", (1, 9, 8))
    program(empty_path / "terraform", VERSION)
    assert engine.command() == ("terraform",)
    monkeypatch.setenv("HOLDFAST_ENGINE", "tofu")
    assert engine.command() == ("tofu",)
    monkeypatch.setenv("HOLDFAST_ENGINE", "terrafrom")
    with pytest.raises(InputError, match="HOLDFAST_ENGINE"):
        engine.command()


def test_the_wheel_becomes_a_program_that_only_this_user_may_write(empty_path: Path) -> None:
    script = Path(engine.program())
    assert os.access(script, os.X_OK)
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    assert stat.S_IMODE(script.parent.stat().st_mode) == 0o700
    assert "bundled_terraform.py" in script.read_text()


@pytest.fixture
def mirror(empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a mirror of providers, which the environment names."""
    monkeypatch.setenv("HOLDFAST_PROVIDER_MIRROR", str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


def test_both_engines_find_the_provider_in_a_mirror(mirror: Path) -> None:
    package = mirror / "registry.terraform.io/hashicorp/google/7.39.0/linux_amd64"
    package.mkdir(parents=True)
    (package / "provider").touch()
    for _ in range(2):  # a second time finds its own links
        file = Path(engine.offline().environment["TF_CLI_CONFIG_FILE"])
    view = Path(file.read_text().split('path    = "')[1].split('"')[0])
    for registry in engine.REGISTRIES:
        assert (view / registry / "hashicorp/google/7.39.0/linux_amd64/provider").exists()
        assert f'"{registry}/hashicorp/*"' in file.read_text()


@pytest.mark.usefixtures("mirror")
def test_a_reader_never_finds_half_a_configuration() -> None:
    """Plans of several processes share it; one that read an empty file went to the registry."""
    file = Path(engine.offline().environment["TF_CLI_CONFIG_FILE"])
    whole = file.read_text()
    file.unlink()
    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(engine.offline) for _ in range(8)]
        contents = {file.read_text() for _ in range(2_000) if file.exists()}
    for write in written:
        assert write.result()
    assert contents <= {whole}
    assert file.read_text() == whole


def test_the_callers_configuration_stays_in_force(
    mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = mirror.with_name("own.tfrc")
    configuration.touch()
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", str(configuration))
    assert engine.offline().environment["TF_CLI_CONFIG_FILE"] == str(configuration)


def test_a_plan_carries_no_credentials_and_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/secret.json")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "real-token")
    monkeypatch.setenv("NO_PROXY", "*")
    variables = engine.isolate(engine.offline()).environment
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in variables
    assert "NO_PROXY" not in variables
    assert variables["GOOGLE_OAUTH_ACCESS_TOKEN"] == "offline"
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == engine.DEAD_PROXY


def test_engine_errors_reach_the_user(empty_path: Path, tmp_path: Path) -> None:
    program(empty_path / "terraform", "#!/bin/sh\necho 'Error: no such provider' >&2\nexit 1\n")
    with pytest.raises(Unjudged, match="no such provider"):
        engine.offline().run(tmp_path, "plan")


def test_a_shell_gets_the_mirror_the_engine_and_cdktf(tmp_path: Path) -> None:
    """Plain `cdktf` reads the configuration that the commands use."""
    mirror = tmp_path / "mirror"
    package = mirror / "registry.terraform.io/hashicorp/google/7.39.0/linux_amd64"
    package.mkdir(parents=True)
    variables = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOLDFAST_PROVIDER_MIRROR": str(mirror),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{ROOT}/workloads/library",
    }
    script = f'eval "$({sys.executable} -m infra.ops.engine)"; env'
    done = ran(["bash", "-e", "-c", script], ROOT, variables)
    assert done.returncode == 0, done.stderr
    assignments = [line for line in done.stdout.splitlines() if "=" in line]
    shown = dict(line.split("=", 1) for line in assignments)
    configuration = Path(shown["TF_CLI_CONFIG_FILE"]).read_text()
    assert f"{tmp_path}/cache/holdfast/engine/mirror" in configuration
    assert ".node/node_modules/.bin" in shown["PATH"].split(":")[0]
    assert shown["TERRAFORM_BINARY_NAME"]
