"""Each extra brings all that its commands import, each lock all that its image's extra declares,
and the wheel all files.
"""

import configparser
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement

from holdfast.commands import app
from holdfast.support.command_line import run_app
from holdfast.support.distribution import DISTRIBUTION, install_command
from holdfast.support.extras import OF_COMMAND, OF_PACKAGE, explain_missing_package
from tests import support
from workloads.images import pins

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "workloads" / "library"
EXTRAS: dict[str, list[str]] = tomllib.loads((LIBRARY / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
# What the bodies of its commands import when they run.
ROOMS = {
    "exporter": ("holdfast.exporter",),
    "mover": ("holdfast.mover",),
    "lint": ("holdfast.lint",),
    # The job file of `place --job`, too.
    "place": (
        "holdfast.place",
        "holdfast.jobs.file.file_text",
        "holdfast.jobs.submit.submission",
        "holdfast.lint.document",
    ),
    "report": ("holdfast.report",),
    "jobs": ("holdfast.jobs",),
    "drill": ("holdfast.drill",),
    "trainer": ("holdfast.training", "holdfast.checkpoint", "holdfast.runtime"),
    "server": (
        "holdfast.inference.server",
        "holdfast.inference.proxy",
        "holdfast.inference.router",
        "holdfast.inference.small_engine",
        "holdfast.inference.predictor",
    ),
    "batch": ("holdfast.inference", "holdfast.checkpoint", "holdfast.runtime"),
}
# For other frameworks, for tests, and for laptops.
OTHERS = (
    "holdfast.inference.results.embedded_postgres",
    "holdfast.cost.churn.cloud_series",  # of `churn --project`: extra report
    "holdfast.training.curves",
    "holdfast.training.examples",
    "holdfast.training.frameworks",
)
INSIDE = """
import importlib, json, pkgutil, re, sys
from importlib.metadata import packages_distributions

given = json.loads(sys.argv[1])
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
owners = {top: {normal(d) for d in found} for top, found in packages_distributions().items()}

class Only:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in owners and not owners[top] & set(given["installed"]):
            raise ModuleNotFoundError(f"{name} is of no package of this extra", name=name)

sys.meta_path.insert(0, Only)
sys.path[:0] = given["paths"]
for room in given["rooms"]:
    package = importlib.import_module(room)
    for found in pkgutil.walk_packages(getattr(package, "__path__", ()), room + "."):
        if not found.name.startswith(tuple(given["left_out"])):
            importlib.import_module(found.name)
            print(found.name)
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_declared(extra: str) -> dict[str, frozenset[str]]:
    """Returns distribution -> its extras, of an extra and of those that it is composed of."""
    distributions: dict[str, frozenset[str]] = {"google-crc32c": frozenset()}
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        if requirement.name == DISTRIBUTION:
            for part in requirement.extras:
                distributions |= list_declared(part)
        else:
            distributions[normal(requirement.name)] = frozenset(requirement.extras)
    return distributions


def closure(wanted: dict[str, frozenset[str]]) -> set[str]:
    """Returns all that pip would install, as far as it is installed here."""
    names = set[str]()
    waiting = list(wanted.items())
    while waiting:
        name, extras = waiting.pop()
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        names.add(name)
        for line in lines:
            requirement = Requirement(line)
            dependency = normal(requirement.name)
            if dependency not in names and applies(requirement, extras):
                waiting.append((dependency, frozenset(requirement.extras)))
    return names


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    if marker is None:
        return True
    return any(marker.evaluate({"extra": extra}) for extra in {*extras, ""})


def import_all(extra: str, *rooms: str) -> subprocess.CompletedProcess[str]:
    others = (*OTHERS, *(ROOMS["server"][:4] if extra == "batch" else ()))
    given = {
        "installed": sorted(closure(list_declared(extra))),
        "rooms": rooms,
        "left_out": others,
    }
    paths = {"paths": [str(LIBRARY), str(ROOT)]}
    command = [
        sys.executable,
        "-I",
        "-c",
        INSIDE,
        json.dumps(given | paths),
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("extra", sorted(ROOMS))
def test_an_extra_brings_all_that_its_rooms_import(extra: str) -> None:
    done = import_all(extra, *ROOMS[extra])
    assert done.returncode == 0, done.stderr[-1500:]
    assert len(done.stdout.split()) >= 3


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"), "")


def build_wheel(folder: Path, repository: str) -> Path:
    """Build it as in a workflow of the repository OWNER/NAME, or outside of one."""
    command = [
        sys.executable,
        str(ROOT / ".ci/wheel.py"),
        "--wheel-only",
        "--out-dir",
        str(folder),
    ]
    environment = os.environ | {"GITHUB_REPOSITORY": repository}
    subprocess.run(
        command,
        env=environment,
        check=True,
        timeout=200,
    )
    return pins.find_wheel(folder)


@pytest.fixture
def drill_bin(wheel: Path) -> Iterator[Path]:
    """Folder bin/ of a new virtual environment with the wheel and links to what its extra `drill`
    declares.
    """
    with tempfile.TemporaryDirectory() as name:
        # as root, PostgreSQL runs as another user, who must reach its programs
        Path(name).chmod(0o755)
        yield install_extra(wheel, "drill", Path(name))


def install_extra(wheel: Path, extra: str, folder: Path) -> Path:
    """Makes a virtual environment with the wheel and links to what an extra declares."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python3.*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    for name in closure(list_declared(extra)):
        support.link_distribution(name, site)
    for path in site.glob("*.dist-info/entry_points.txt"):
        write_scripts(path, folder / "bin")
    return folder / "bin"


def write_scripts(entry_points: Path, folder: Path) -> None:
    """Writes the commands of a distribution, as pip writes them."""
    points = configparser.ConfigParser(delimiters="=")
    points.optionxform = str
    points.read(entry_points)
    for name, target in (
        points["console_scripts"].items() if points.has_section("console_scripts") else ()
    ):
        module, _, call = target.partition(":")
        guard = f'if __name__ == "__main__":\n    sys.exit({call}())\n'
        text = f"#!{folder / 'python'}\nimport sys\nfrom {module} import {call}\n{guard}"
        support.program(folder / name, text)


@pytest.mark.process
def test_extra_drill_brings_database_proxy_and_report(drill_bin: Path, tmp_path: Path) -> None:
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    words = [drill_bin / "holdfast", "batch", "database", "--dir", tmp_path / "db"]
    with subprocess.Popen(
        words,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        server.terminate()
        assert line, server.stderr.read()
        assert json.loads(line)["uri"].startswith("postgresql://") and server.wait(60) == 0
    envoy = "from holdfast.drill.serving.fleet import find_envoy; print(find_envoy())"
    found = support.ran([drill_bin / "python", "-c", envoy], tmp_path, variables)
    assert found.stdout.strip() == str(drill_bin / "envoy"), found.stderr
    for shown in (["place"], ["report", "--help"], ["drill", "--list"]):
        done = support.ran([drill_bin / "holdfast", *shown], tmp_path, variables)
        assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.timeout(900)  # on an idle machine a tenth of it
def test_extra_demo_plays_the_checkpoint_part_without_a_clone(wheel: Path, tmp_path: Path) -> None:
    holdfast = install_extra(wheel, "demo", tmp_path / "venv") / "holdfast"
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = support.ran([holdfast, "demo", "--part", "checkpoint"], tmp_path, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evicted 2 times" in done.stdout
    assert "to the last bit" in done.stdout
    text = (tmp_path / "out/demo/summary.json").read_text()
    training = json.loads(text)["training"]
    assert training["bit_exact"]
    assert training["evictions"] == 2
    last_line = done.stderr.splitlines()[-1]
    _, *words = last_line.removeprefix("Next: ").split()
    listing = support.ran([holdfast, *words], tmp_path, variables)
    assert listing.returncode == 0, listing.stderr
    assert "train-evicted" in listing.stdout, listing.stderr
    refusal = support.ran([holdfast, "demo"], tmp_path, variables)
    assert refusal.returncode == 2
    assert "holdfast-gke[drill]" in refusal.stderr


@pytest.mark.process
def test_a_package_from_another_extra_would_be_seen() -> None:
    """Else the test above could not fail."""
    assert " is of no package of this extra" in import_all("mover", "holdfast.exporter").stderr


def test_every_image_s_lock_holds_what_its_extra_declares() -> None:
    for role, image in pins.ROLES.items():
        lock = (ROOT / f"requirements/{image.group}.txt").read_text()
        locked = {normal(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
        assert list_declared(role).keys() - {"google-crc32c"} <= locked, role


def test_every_answer_names_an_existing_extra_and_command() -> None:
    assert {*OF_COMMAND.values(), *OF_PACKAGE.values()} <= EXTRAS.keys()
    commands = [command.name for command in app.registered_commands]
    commands += [group.name for group in app.registered_groups]
    for name in OF_COMMAND:
        assert name.partition(" ")[0] in commands


@pytest.mark.parametrize(
    ("words", "program", "name", "extra"),
    [
        ("report", "import altair_of_nobody", "", ""),
        ("report", "raise ModuleNotFoundError('no', name='altair')", "altair", "report"),
        (
            "export",
            "raise ModuleNotFoundError('no', name='kubernetes.client')",
            "kubernetes.client",
            "exporter",
        ),
        ("train", "raise ModuleNotFoundError('no', name='torch')", "torch", "torch"),
        ("train", "raise ModuleNotFoundError('no', name='google')", "google", "gcs"),
        (
            "train",
            "raise ImportError(\"cannot import name 'x' from 'torch'\", name='torch')",
            "",
            "",
        ),
    ],
)
def test_a_command_that_lacks_a_package_names_its_extra(
    words: str,
    program: str,
    name: str,
    extra: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lame = typer.Typer()
    lame.command(words)(lambda: exec(program))
    lame.command("other")(lambda: None)
    with pytest.raises(SystemExit) as end:
        run_app(lame, [words])
    if not extra:
        assert end.value.code == 70, "a package that no extra brings, or half a package, is a bug"
        return
    assert end.value.code == 2
    _, got, _, fix = capsys.readouterr().err.splitlines()
    assert got.endswith(f"holdfast without {name}") and fix.endswith(install_command(extra))


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        (name,) = names
        folder = name.removesuffix("METADATA")
        text = archive.read(f"{folder}licenses/LICENSE")
        assert text == (ROOT / "LICENSE").read_bytes()
        metadata = archive.read(name)
    return message_from_bytes(metadata)


@pytest.mark.process
def test_wheel_metadata_is_complete_with_and_without_a_repository(
    wheel: Path, tmp_path: Path
) -> None:
    plain = read_metadata(wheel)
    supported = {"3.11", "3.12", "3.13"}
    assert plain["Requires-Python"] == "<3.14,>=3.11"
    assert plain["License-Expression"]
    classifiers = " ".join(plain.get_all("Classifier", []))
    versions = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert set(versions) == supported
    assert "](" not in str(plain.get_payload())
    assert not plain.get_all("Project-URL")
    published_wheel = build_wheel(tmp_path, "acme/holdfast")
    published = read_metadata(published_wheel)
    assert len(published.get_all("Project-URL", [])) == 4
    version = published["Version"]
    tag = f"https://github.com/acme/holdfast/blob/v{version}/"
    links = re.findall(r"\]\((.*?)\)", str(published.get_payload()))
    assert links
    for link in links:
        assert link.startswith(tag)
        path = link.removeprefix(tag)
        assert (ROOT / path).exists(), link


def test_subcommands_have_extras() -> None:
    error = ImportError("cannot import name 'monitoring_v3' from 'google.cloud' (x)")
    missing = explain_missing_package(error, ["place", "churn", "--project=p"])
    assert missing is not None
    assert missing.fix == install_command("report")
    error = ModuleNotFoundError("no", name="numpy")
    missing = explain_missing_package(error, ["place"])
    assert missing is not None
    assert missing.fix == install_command("place")


@pytest.mark.process
def test_the_wheel_holds_every_file_and_is_reproducible(tmp_path: Path) -> None:
    built = [build_wheel(tmp_path / name, "").read_bytes() for name in ("a", "b")]
    assert built[0] == built[1]
    with zipfile.ZipFile(pins.find_wheel(tmp_path / "a")) as archive:
        names = archive.namelist()
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "holdfast"]
    listed = subprocess.run(
        words,
        cwd=LIBRARY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    suffixes = set()
    files = set()
    for name in names:
        if name.startswith("holdfast/"):
            files.add(name)
            suffixes.add(Path(name).suffix)
    assert files == {name for name in listed if (LIBRARY / name).exists()}
    assert {".json", ".css"} <= suffixes
